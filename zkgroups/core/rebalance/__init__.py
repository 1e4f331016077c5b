"""How members share partitions: strategies, the shared plan, and the state machine of one member."""
