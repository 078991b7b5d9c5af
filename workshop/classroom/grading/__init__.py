"""Grading: a hand-in is run again where it can do no harm, and judged where it cannot lie.

Two processes share the work. In the *sandbox* (`sandbox`, `isolate`) the learner's code runs: no network, no
files but its own and the libraries', bounded time, memory, processes and output. In the grader's own process
stand the checks, the very ones of the notebook (`workshop.exercises`), and none of the learner's code. A
check calls the learner's function as ever; the call goes to the sandbox and an answer comes back as data
(`wire`, `remote`, `answering`). So what is printed, patched or replaced in the sandbox changes nothing but
the learner's own answers.

Exercises on ranks are tried by ranks inside the sandbox, whose reports come back as data, to be judged here.
There the learner's function and the code that tries it share a process: see SECURITY.md for what that leaves
open.

`handins` finds what was handed in, `rerun` reruns and compares, `export` writes the tables.
"""
