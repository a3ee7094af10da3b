"""A small Kubernetes client runtime: raw JSON over ``kubernetes.aio``, informer, work queue, leader election, events.

It knows Kubernetes and nothing of GPUs or Jobs. The coordinator, the local cluster and the CLI stand on it; the agent
never does (it has no rights on the API server).
"""
