"""The local node runtime: kubelets that run Pods as processes. Start it with `python -m nvcre_local.node`."""
