"""The line that runs a command inside a site's container: Apptainer, Singularity or Charliecloud.

A container is one file with Python, CUDA's libraries, NCCL and the workshop in it. Four things must be said
when it is run, and each is a trap when it is not:

* **GPUs**: the driver belongs to the node and not to the image. ``--nv`` brings the node's in.
* **Folders**: of the node's file systems only those named by ``--bind`` are seen.
* **Variables**: by default all of the shell's come along, and a ``PYTHONPATH`` or ``LD_LIBRARY_PATH`` of the
  node breaks the image's Python. ``--cleanenv`` keeps them out; ``--env`` passes those that ranks need.
* **Where**: ``--pwd``. Else the command starts in a folder that the image may not have.

`container_command` is a list for ``subprocess``; `container_line` is text for a batch script, where some
values (which GPUs this job was given) are known only on the node.

Sources: Apptainer user guide, "Bind Paths and Mounts", "Environment and Metadata", "GPU Support";
Charliecloud, ``ch-run(1)``.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from workshop.site.spec import SiteSpec

# Set on the node by the scheduler; a job that did not get them must not get empty ones.
NODE_VARIABLES = ("CUDA_VISIBLE_DEVICES",)
# ch-run reads no %environment: the image's own Python must come first by hand.
IMAGE_PATH = "/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def container_command(
    site: SiteSpec,
    command: Sequence[str],
    *,
    folder: str,
    environment: Mapping[str, str] | None = None,
    gpus: bool | None = None,
) -> list[str]:
    """``command`` inside the site's container; ``command`` itself at a site that has none.

    folder: working folder, bound and entered; with the site's jobs and cache it must be there already.
    environment: the only variables that come along. gpus: whether GPUs are used (default: the site has some).

    Raises ValueError where a path of the site still holds a variable ($USER), or a bind cannot be had with
    the site's runtime.
    """
    if site.runtime == "none":
        return list(command)
    variables = {"PYTHONNOUSERSITE": "1", **(environment or {})}
    return [*_start(site, folder, variables, gpus), *_image(site), *command]


def container_line(
    site: SiteSpec,
    *,
    folder: str,
    environment: Mapping[str, str] | None = None,
    gpus: bool | None = None,
    node_variables: Sequence[str] = NODE_VARIABLES,
) -> str:
    """The same as shell text up to the command, for a batch script; "" at a site without a container.

    node_variables: names whose values the node sets; passed where they are set. Raises as above.
    """
    if site.runtime == "none":
        return ""
    variables = {"PYTHONNOUSERSITE": "1", **(environment or {})}
    flag = "--set-env=" if site.runtime == "charliecloud" else "--env "
    passed = [f'${{{name}+{flag}"{name}=${name}"}}' for name in node_variables if name not in variables]
    return " ".join(
        [shlex.join(_start(site, folder, variables, gpus)), *passed, shlex.join(_image(site))]
    ).strip()


def all_binds(site: SiteSpec, folder: str) -> list[str]:
    """The site's binds, then ``folder``, jobs and cache where no bind shows them yet: SOURCE[:TARGET[:ro]].

    Raises ValueError for a path with a variable in it.
    """
    binds = list(site.binds)
    for path in (folder, site.jobs, site.cache):
        if path and not any(_shows(bind, path) for bind in binds):
            binds.append(path)
    for bind in (*binds, site.container):
        if "$" in bind:
            raise ValueError(
                f"{bind!r} holds a variable: `site.current.expanded` fills it in on this machine"
            )
        if ":" in bind.split(":", 2)[-1] or "," in bind:
            raise ValueError(f"bind {bind!r}: write it as SOURCE[:TARGET[:ro]], one folder each")
    return binds


def bind_parts(bind: str) -> tuple[str, str, str]:
    """Source, target and "ro" or "" of a bind."""
    source, _, rest = bind.partition(":")
    target, _, option = rest.partition(":")
    return source, target or source, option


def _shows(bind: str, path: str) -> bool:
    """Whether ``path`` is seen inside under its own name (or was meant as a name inside) by this bind."""
    target = PurePosixPath(bind_parts(bind)[1])
    return target == PurePosixPath(path) or target in PurePosixPath(path).parents


def _start(site: SiteSpec, folder: str, variables: Mapping[str, str], gpus: bool | None) -> list[str]:
    binds = all_binds(site, folder)
    if site.runtime == "charliecloud":
        return _charliecloud(binds, folder, variables)
    words = [site.runtime, "exec", "--cleanenv"]
    if site.gpus > 0 if gpus is None else gpus:
        words.append("--nv")
    for bind in binds:
        words += ["--bind", bind]
    words += ["--pwd", folder]
    for name, value in variables.items():
        words += ["--env", _pair(name, value)]
    return words


def _pair(name: str, value: str) -> str:
    """``NAME=VALUE`` as ``--env`` reads it: with a second = it is a list between commas, unless in quotes;
    without one it loses quotes at its end (seen with Apptainer 1.4.5).
    """
    pair = f"{name}={value}"
    if "=" in value:
        return '"' + pair.replace('"', '""') + '"'
    if value.endswith('"'):
        raise ValueError(f"{name}={value}: --env drops a quote at the end; write the value another way")
    return pair


def _charliecloud(binds: Sequence[str], folder: str, variables: Mapping[str, str]) -> list[str]:
    words = ["ch-run", "--unset-env=*", f"--set-env=PATH={IMAGE_PATH}"]
    for bind in binds:
        source, target, option = bind_parts(bind)
        if option:
            raise ValueError(f"bind {bind!r}: Charliecloud cannot bind read-only; leave :{option} out")
        words.append(f"--bind={source}:{target}")
    words.append(f"--cd={folder}")
    return words + [f"--set-env={name}={value}" for name, value in variables.items()]


def _image(site: SiteSpec) -> list[str]:
    return [site.container, "--"] if site.runtime == "charliecloud" else [site.container]
