"""The line that runs a command inside a site's container: Apptainer, Singularity or Charliecloud.

A container is one file with Python, CUDA's libraries, NCCL and the workshop in it. Four things must be said
when it is run, and each is a trap when it is not:

* **GPUs**: the driver belongs to the node and not to the image. ``--nv`` brings the
  node's in, or ``--rocm`` for AMD's.
* **Folders**: of the node's file systems only those named by ``--bind`` are seen.
* **Variables**: by default all of the shell's come along, and a ``PYTHONPATH`` or ``LD_LIBRARY_PATH`` of the
  node breaks the image's Python. ``--cleanenv`` keeps them out; ``--env`` passes those that ranks need.
* **Where**: ``--pwd``. Else the command starts in a folder that the image may not have.

`container_command` is a list for ``subprocess``; `container_line` is text for a batch script, where some
values (which GPUs this job was given) are known only on the node. Every user of a node can read the command
lines of all, so a secret goes by the runtime's own environment (``APPTAINERENV_NAME``): `hidden_environment`.

Sources: Apptainer user guide, "Bind Paths and Mounts", "Environment and Metadata", "GPU Support";
Charliecloud, ``ch-run(1)``.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from workshop.facts.secret_variables import is_secret, is_secret_name
from workshop.site.spec import SiteSpec

# Set on the node by the scheduler; a job that did not get them must not get empty ones.
NODE_VARIABLES = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "amd": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
}
GPU_FLAGS = {"nvidia": "--nv", "amd": "--rocm"}
HIDDEN = {"apptainer": "APPTAINERENV_", "singularity": "SINGULARITYENV_"}
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
    environment: the only variables that come along; secrets among them are not in the command, so whoever
        runs it adds `hidden_environment` to its own.
    gpus: whether GPUs are used (default: the site has some).

    Raises ValueError where a path of the site still holds a variable ($USER), or a bind cannot be had with
    the site's runtime.
    """
    if site.runtime == "none":
        return list(command)
    variables = _seen(site, environment)
    return [*_start(site, folder, variables, gpus), *_image(site), *command]


def container_line(
    site: SiteSpec,
    *,
    folder: str,
    environment: Mapping[str, str] | None = None,
    gpus: bool | None = None,
    node_variables: Sequence[str] | None = None,
) -> str:
    """The same as shell text up to the command, for a batch script; "" at a site without a container.

    node_variables: names whose values the node sets, passed where they are set (default: those that say which
        GPUs the job has). Secrets, and what is raised, as above.
    """
    if site.runtime == "none":
        return ""
    variables = _seen(site, environment)
    names = NODE_VARIABLES[site.gpu] if node_variables is None else node_variables
    flag = "--set-env=" if site.runtime == "charliecloud" else "--env "
    shown = [name for name in names if name not in variables and not is_secret_name(name)]
    passed = [f'${{{name}+{flag}"{name}=${name}"}}' for name in shown]
    return " ".join(
        [shlex.join(_start(site, folder, variables, gpus)), *passed, shlex.join(_image(site))]
    ).strip()


def hidden_environment(site: SiteSpec, environment: Mapping[str, str]) -> dict[str, str]:
    """What whoever runs the container sets: the secrets of ``environment``, which no command line may show.

    Empty without a container. Raises ValueError for Charliecloud, which takes variables by command line only.
    """
    secret = {name: value for name, value in environment.items() if is_secret(name, value)}
    if site.runtime == "none" or not secret:
        return {}
    return {hidden_name(site, name): value for name, value in secret.items()}


def hidden_name(site: SiteSpec, name: str) -> str:
    """The name under which the site's runtime takes the variable ``name`` from its own environment.

    Raises ValueError for Charliecloud.
    """
    if site.runtime not in HIDDEN:
        raise ValueError(
            f"{name} is secret, and {site.runtime} takes variables by its command line, which all users of "
            "a node can read: leave it out of the site's file, and read it from a file of yours"
        )
    return HIDDEN[site.runtime] + name


def _seen(site: SiteSpec, environment: Mapping[str, str] | None) -> dict[str, str]:
    """The variables that may stand on a command line."""
    environment = environment or {}
    hidden_environment(site, environment)
    shown = {name: value for name, value in environment.items() if not is_secret(name, value)}
    return {"PYTHONNOUSERSITE": "1", **shown}


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
        words.append(GPU_FLAGS[site.gpu])
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
