"""What holds for every socket file of ours. Used by endpoint.py and control.py."""

PATH_BYTES_MAX = 107  # sun_path
UMASK = 0o117  # 0777 & ~0117 = 0660: owner and group may connect, which needs write permission
