"""What the text of a workload's log means: nccl-tests tables and training steps, as values.

Bytes in, values out; it talks to nobody. The agent (its probes), the coordinator (followed logs) and the CLI (saved
logs) stand on it, so that a log means the same to all three.
"""
