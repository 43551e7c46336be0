"""A simulated Jetson Orin: the physics (model), the tree (tree, board), real time (runner), no files (simulated)."""
