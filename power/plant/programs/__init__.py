"""Executables of a simulated board: nvpmodel, nvfancontrol, jetson_clocks, systemctl.

tree.py copies them below a plant's root (ROOT/usr/sbin/nvpmodel). Each works on its own root alone, is started with
`python -IS` and imports nothing but the standard library, so that it owes nothing to the code that it tries.
"""
