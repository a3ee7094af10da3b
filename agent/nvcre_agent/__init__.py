"""The node agent of nvcre: watches the GPUs of one node and tells the coordinator."""

__version__ = "0.1.0"
