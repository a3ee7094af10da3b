"""The embedded Kubernetes API server: what our own clients and a person's kubectl need, in memory, up within a second.

From the bottom: `storage` keeps objects and their history, `operations` are the verbs over it (synchronous, so each is
atomic on the event loop), `routes` turns HTTP into operations, `server` binds and serves.  Server-side apply, RBAC,
aggregation, admission webhooks and persistence are left out on purpose: a real control plane has those.
"""
