"""The room: who learns here, who is stuck, and a hint from whoever teaches; files in a shared folder, no
server.

A room is a folder that everybody of a course can reach::

    ROOM/room.json               whose room it is; written by the instructor
         learners/NAME-ID/       a learner's own folder, which only they write to
             state.json          tries, hints, guesses, the doctor's verdict: the whole, written anew each
             time code/EXERCISE.py    only once the learner has agreed to it
         pushed/all.json         what the instructor says to everybody
                NAME-ID.json     and to one learner

Each file has one writer and is moved into place whole, so nobody waits for a lock and nobody reads half a
file, on a network's file system too. Everything is JSON, of a bounded size, read through no link and only
from the user whose folder it lies in; nothing in a room is ever run or unpickled. Without ``%room join``
nothing is written.

`seat` is the learner's side, `view` and `push` are the instructor's; `grading` reruns what was handed in.
"""
