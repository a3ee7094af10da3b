"""Hostile input: everything that others may write to us, as functions of bytes.

A target takes any bytes, feeds them to the real code as its source would, and raises where a promise is broken: an
exception that the code does not promise, an answer that cannot be told on, a structure beyond its bound. `make fuzz`
drives the targets with atheris, guided by coverage (`python -m fuzz`); tests/unit/test_hostile_input.py drives the same
ones with hypothesis in the normal tests. Input that once broke one lies in seeds/TARGET/broke-*.
"""
