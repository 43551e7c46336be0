"""What Python runs first when jtop or its client is started by the tests: the kernel of a board names its machine so,
and that is the one thing a namespace cannot change."""

import platform

platform.machine = lambda: "aarch64"
