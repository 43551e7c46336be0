"""Programs that read a board through other people's software, each a process of its own with an interpreter of its own.

Nothing here is imported by orind: daemon/jtop_source.py starts `PYTHON jtop_reader.py INTERVAL_S` with the interpreter
that the operator names, and reads lines of JSON from it. jetson-stats is AGPL-3.0.
"""
