"""What processes of nvcre agree upon: the agent's wire code (generated), and by hand their flags, log and ready file.

Below every other room, so it knows no Kubernetes and, apart from the generated code, imports nothing but Python's own.
"""
