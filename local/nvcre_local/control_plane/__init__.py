"""A real Kubernetes control plane as plain processes: built from pinned Go modules, started on loopback, ended whole.

etcd, kube-apiserver, kube-controller-manager, kube-scheduler, JobSet, Kubeflow Trainer, and on wish Kueue and kwok. The
kubelets are ours (nvcre_local.node). `python -m nvcre_local.control_plane` builds and starts it for people.
"""
