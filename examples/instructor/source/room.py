# %% [markdown]
# # Who is stuck, and where?
#
# For those who teach. A room is a folder that everybody of a course can reach
# (`INSTRUCTORS.md`): learners join it knowingly, and their notebooks write down how
# far they are. This page looks at one. Without a room of yours it makes one up, an
# hour into lessons 21 and 22, so that you see what you would see.

# %%
import os
import tempfile
import time
from pathlib import Path

from workshop.classroom.example import example_room
from workshop.classroom.folder import find_room
from workshop.classroom.push import composed, push, pushed_to
from workshop.classroom.view import look

if os.environ.get("WORKSHOP_ROOM"):
    room = find_room(os.environ["WORKSHOP_ROOM"])
else:
    room = example_room(Path(tempfile.mkdtemp()) / "room", time.time())

# %% [markdown]
# ## The room now
#
# Who is stuck stands first: three tries at one exercise without success, or ten
# minutes since the first. Run the cell again to look again.

# %%
view = look(room)
view

# %% [markdown]
# ## One question to it
#
# `view.learners`, `view.statistics()` and `view.guesses()` are plain records. Which
# exercise holds the room up?

# %%
stuck = [one.stuck(view.now)[0] for one in view.learners if one.stuck(view.now)]
where = max(set(stuck), key=stuck.count) if stuck else ""
print(f"{len(stuck)} of {len(view.learners)} are stuck, most at {where or 'none'}")
timed = [one for one in view.statistics() if one.seconds is not None]
for one in sorted(timed, key=lambda one: one.seconds, reverse=True)[:3]:
    print(
        f"{one.exercise}: median {one.seconds / 60:.0f} min, slowest {one.slowest[0]}"
    )

# %% [markdown]
# ## Say something
#
# A hint of the exercise's own, its solution, or words of yours; to one learner, or to
# all. They see it below their next `%exercise`, `%%exercise` or `%progress`. Only the
# room's owner can do this.

# %%
if where:
    push(room, *composed(where, hint=1), exercise=where)
push(room, *composed("", text="Five minutes more, then we look at it together."))
for said in pushed_to(room, view.learners[0].folder)["all.json"]:
    print(said, end="\n\n")

# %% [markdown]
# ## After the course
#
# `workshop grade FOLDER --output grades` reruns what was handed in, in a sandbox, and
# writes the tables for nbgrader and otter. `workshop room show FOLDER --json` is this
# page as data.
