"""For all tests."""

import os

# In a process that talks gRPC, a child between fork and exec (`preexec_fn`) is ended by gRPC's handlers of fork, in one
# of five cases on a busy stream: its poller wakes without its descriptor. Read when gRPC starts, so set before.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
