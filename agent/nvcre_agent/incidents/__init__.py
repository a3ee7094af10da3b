"""Incidents: what the agent tells. Signals of both sources are folded into one incident per fault. Pure."""
