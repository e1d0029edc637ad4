"""dsec.sml.verbs: the RDMA devices of this machine, and which of them a pool is reached by."""
