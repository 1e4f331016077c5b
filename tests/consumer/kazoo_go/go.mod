module zkgroups/tests/consumer

go 1.21

require github.com/wvanbergen/kazoo-go v0.0.0-20180202103751-f72d8611297a

require github.com/samuel/go-zookeeper v0.0.0-20190923202752-2cc03de413da // indirect
