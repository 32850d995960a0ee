# SPDX-License-Identifier: MIT
"""The launcher: a small single-threaded process that builds boxes and leaves an init in each.

It exists because a threaded server can neither fork safely nor enter a user namespace. It is started once by its
owner, with an empty environment, and talks over one socket (wire.py):

    owner --{"box": plan}, [box end of a socket pair, cgroup.procs ...]--> launcher
    launcher forks; the child becomes the box (box.py) and its init (init.py) answers on the box's own socket:
        {"forked": pid}, [pidfd]      the init exists; killing it kills the box
        {"ready": true}, [directory]  everything is confined; the directory is the workspace
        {"error": ..., "step": ...}   the box could not be built
    owner --{"exec": {...}}, [stdin, stdout, stderr]--> init, any number of times
        {"started": id}, {"exit": id, ...}

The owner's death closes the sockets, which ends the launcher and every init, and with an init its whole PID
namespace. Runs only the standard library and rooms linux and errors.
"""
