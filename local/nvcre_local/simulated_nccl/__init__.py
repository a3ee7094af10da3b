"""Stand-ins for nccl-tests, mpirun and sshd on a simulated cluster.

A scenario puts shims of these programs first on the PATH of its Pods. They print what the real programs print, with
figures from the simulation directory, so that everything that reads such text is exercised with the real shapes. Every
shim is a process of its own that lives for one workload: this package imports nothing but the standard library, and of
that as little as it can.
"""
