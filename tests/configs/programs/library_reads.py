"""What Accelerate, DeepSpeed and transformers make of files: loaded, prepared or refused, in one process.

    library_reads.py FOLDER      reads FOLDER/cases.json, writes FOLDER/found.json: name of the case -> what was found

A case has ``kind``, ``config`` and what that kind needs:

yaml         `accelerate launch` up to the point where it would start processes: the variables it sets, and what
             the plugins and the mesh make of them (as each rank would)
json         `DeepSpeedConfig`, as on ``ranks`` ranks
engine       `deepspeed.initialize` with a small model and a step of all its micro-batches, on one rank
accelerate   the JSON by way of `Accelerator.prepare`, on one rank
trainer      the JSON by way of transformers' Trainer, with ``max_grad_norm`` 0.25
saving       what Trainer saves where Accelerate cannot gather the weights
loading      whether ``from_pretrained`` shards the weights as it makes them

Where there is no GPU, FSDP1 is told that there is one: it only asks for its number.
"""

import contextlib
import copy
import importlib
import json
import logging
import os
import socket
import sys
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace

os.environ["DS_ACCELERATOR"] = "cpu"
warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import accelerate.commands.launch as launch  # noqa: E402
import accelerate.utils.dataclasses as plugins  # noqa: E402
import deepspeed  # noqa: E402
import deepspeed.runtime.config as deepspeed_config  # noqa: E402
import torch  # noqa: E402
import torch.distributed.run  # noqa: E402
import yaml  # noqa: E402
from accelerate import Accelerator  # noqa: E402
from accelerate.parallelism_config import ParallelismConfig  # noqa: E402
from accelerate.state import AcceleratorState, GradientState  # noqa: E402
from accelerate.utils import DistributedType, patch_environment  # noqa: E402
from accelerate.utils import launch as prepare  # noqa: E402
from deepspeed.launcher import constants as launchers  # noqa: E402
from deepspeed.launcher.runner import fetch_hostfile  # noqa: E402
from deepspeed.ops.adam import DeepSpeedCPUAdam  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig, unset_hf_deepspeed_config  # noqa: E402

from workshop.parallel.accelerate_on_cpu import ranks_like_gpus  # noqa: E402
from workshop.site.current import launcher_variables  # noqa: E402

LAUNCHERS = {
    "simple_launcher": prepare.prepare_simple_launcher_cmd_env,
    "multi_gpu_launcher": prepare.prepare_multi_gpu_env,
    "deepspeed_launcher": prepare.prepare_deepspeed_cmd_env,
}


def refusal(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:600]


# ------------------------------------------------------------------ Accelerate's YAML


def read_yaml(config: dict) -> dict:
    """Up to the start of processes, and what each of them would make of its variables."""
    found = launched(config)
    if not found["refused"]:
        with patch_environment(**found["environment"]), like_a_gpu():
            found["refused"] = refused_by_plugins(config, found)
    return found


def launched(config: dict) -> dict:
    """What `accelerate launch` would start, and with which variables."""
    found: dict = {"refused": "", "launcher": ""}

    def instead(name: str):
        def start(*arguments):
            args = arguments[-1]
            made = LAUNCHERS[name](args)
            command, environment = made if isinstance(made, tuple) else ([], made)
            found.update(
                launcher=name,
                command=command or [],
                environment={
                    key: value for key, value in environment.items() if os.environ.get(key) != value
                },
                each_node=getattr(args, "nproc_per_node", None),
                processes=args.num_processes,
                endpoint=getattr(args, "rdzv_endpoint", None),
                node=getattr(args, "node_rank", None),
                cpu_adam_refuses=cpu_adam_refuses(),
                **of_deepspeeds_launcher(made),
            )

        return start

    for name in LAUNCHERS:
        setattr(launch, name, instead(name))
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(config, file)
        file.flush()
        try:
            args = launch.launch_command_parser().parse_args(["--config_file", file.name, "train.py"])
            args.main_process_port = 0 if args.main_process_port is None else args.main_process_port
            launch.launch_command(args)
        except Exception as error:  # noqa: BLE001 - which errors a library has is what is asked
            found["refused"] = refusal(error)
    return found


def cpu_adam_refuses() -> bool:
    """Whether DeepSpeed's CPU optimizer takes no step with weights that are elsewhere."""
    weight = torch.nn.Parameter(torch.ones(2, device="meta"))
    weight.grad = torch.ones(2, device="meta")
    try:
        DeepSpeedCPUAdam.step(SimpleNamespace(param_groups=[{"params": [weight]}]))
    except AssertionError as error:
        return "must be 'cpu'" in str(error)
    return False


def of_deepspeeds_launcher(made) -> dict:
    """Whether DeepSpeed's own launcher finds a host file, and knows how it shall reach the hosts; {} where it is not used."""
    command = made[0] if isinstance(made, tuple) else None
    if not command or command[0] != "deepspeed":
        return {}
    known = [value for name, value in vars(launchers).items() if name.endswith("_LAUNCHER")]
    file = fetch_hostfile(command[command.index("--hostfile") + 1])
    return {
        "host_file": "none" if file is None else "found",
        "knows_launcher": "--launcher" not in command or command[command.index("--launcher") + 1] in known,
    }


def refused_by_plugins(config: dict, found: dict) -> str:
    """The plugins as `Accelerator()` makes them; fills in what they hold."""
    environment = found["environment"]
    try:
        if environment.get("ACCELERATE_USE_DEEPSPEED") == "true":
            plugin = plugins.DeepSpeedPlugin()
            plugin.set_mixed_precision(environment["ACCELERATE_MIXED_PRECISION"])
            found["deepspeed"] = copy.deepcopy(plugin.deepspeed_config) | {"steps_per_print": 1}
            deepspeed_config.DeepSpeedConfig(filled_in(plugin.deepspeed_config))
        if environment.get("ACCELERATE_USE_FSDP") == "true":
            plugin = plugins.FullyShardedDataParallelPlugin()
            found["fsdp"] = {key: str(value) for key, value in vars(plugin).items()}
        if environment.get("ACCELERATE_USE_PARALLELISM_CONFIG") == "true":
            mesh = ParallelismConfig()
            found["mesh"] = {key: size for key, size in vars(mesh).items() if key.endswith("_size")}
            mesh._validate_accelerator(as_accelerator(config, found))
        if environment.get("ACCELERATE_MIXED_PRECISION") == "fp8":
            plugins.FP8BackendType(environment.get("ACCELERATE_FP8_BACKEND", "NO"))
        if found["launcher"] != "simple_launcher" and not found["command"]:
            torch.distributed.run.determine_local_world_size(found["each_node"])
    except Exception as error:  # noqa: BLE001
        return refusal(error)
    return ""


def filled_in(config: dict) -> dict:
    """What `Accelerator.prepare` puts in the place of ``"auto"``."""
    return {
        key: {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": 1.0,
        }.get(key)
        if value == "auto"
        else value
        for key, value in config.items()
    } | {"steps_per_print": 1}


def as_accelerator(config: dict, found: dict) -> SimpleNamespace:
    kind = config["distributed_type"]
    return SimpleNamespace(
        multi_device=kind.startswith("MULTI_") and kind != "MULTI_CPU",
        num_processes=int(found["processes"]) if found["launcher"] != "simple_launcher" else 1,
        is_fsdp2=kind == "FSDP" and found["fsdp"]["fsdp_version"] == "2",
        distributed_type=DistributedType(kind),
        is_main_process=True,
    )


@contextlib.contextmanager
def like_a_gpu():
    """FSDP1 asks which device it is on."""
    if torch.cuda.is_available():
        yield
        return
    kept = plugins.is_cuda_available, torch.cuda.current_device
    plugins.is_cuda_available, torch.cuda.current_device = (lambda: True), (lambda: 0)
    try:
        yield
    finally:
        plugins.is_cuda_available, torch.cuda.current_device = kept


# ------------------------------------------------------------------ DeepSpeed's JSON


def read_json(config: dict, ranks: int = 1) -> dict:
    """As DeepSpeed reads it on that many ranks."""
    world = deepspeed_config.dist
    kept = world.get_world_size, world.get_rank
    world.get_world_size, world.get_rank = (lambda *_: ranks), (lambda *_: 0)
    try:
        made = deepspeed_config.DeepSpeedConfig(copy.deepcopy(config))
    except Exception as error:  # noqa: BLE001
        return {"refused": refusal(error)}
    finally:
        world.get_world_size, world.get_rank = kept
    return {
        "refused": "",
        "clipping": made.gradient_clipping,
        "stage": int(made.zero_optimization_stage),
        "batch": [
            made.train_batch_size,
            made.train_micro_batch_size_per_gpu,
            made.gradient_accumulation_steps,
        ],
        "bf16": made.bfloat16_config.enabled,
        "fp16": made.float16_config.enabled,
        "gathers": made.zero_config.gather_16bit_weights_on_model_save,
        "offloads": [
            str(offload and offload.device)
            for offload in (made.zero_config.offload_param, made.zero_config.offload_optimizer)
        ],
    }


def as_json(config: dict) -> dict:
    """The JSON that Accelerate makes of a YAML; a JSON as it is."""
    if "distributed_type" not in config:
        return copy.deepcopy(config)
    made = read_yaml(config)["deepspeed"]
    del made["train_batch_size"]
    return made | {"train_micro_batch_size_per_gpu": 2}


def small_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))


def read_engine(config: dict) -> dict:
    """A step with the engine that DeepSpeed makes."""
    model = small_model()
    kept = as_json(config)
    for name in ("offload_param", "offload_optimizer"):  # there is no GPU whose memory could be pinned for
        section = kept.get("zero_optimization")
        if isinstance(section, dict) and isinstance(section.get(name), dict):
            section[name]["pin_memory"] = False
    optimizer = None if "optimizer" in kept else torch.optim.AdamW(model.parameters(), lr=1e-2)
    try:
        engine, *_ = deepspeed.initialize(
            model=model, model_parameters=model.parameters(), optimizer=optimizer, config=kept
        )
        for _ in range(engine.gradient_accumulation_steps() + 1):
            inputs = torch.ones(2, 8, dtype=next(engine.module.parameters()).dtype)
            engine.backward(engine(inputs).float().pow(2).sum())
            engine.step()
    except Exception as error:  # noqa: BLE001
        return {"refused": refusal(error)}
    return seen(engine)


def seen(engine) -> dict:
    found = {
        "refused": "",
        "clipping": float(engine.gradient_clipping()),
        "stage": int(engine.zero_optimization_stage()),
        "width": str(next(engine.module.parameters()).dtype).removeprefix("torch."),
        "optimizer": type(engine.basic_optimizer).__name__,
        "wrapper": type(engine.optimizer).__name__,
        "states_on_cpu": bool(getattr(engine.optimizer, "cpu_offload", False)),
        "weights_on_cpu": bool(getattr(engine.optimizer, "offload_param", False)),
        "recomputes": "Checkpoint" in " ".join(type(m).__name__ for m in engine.module.modules()),
    }
    if found["stage"] == 3:
        with tempfile.TemporaryDirectory() as folder:
            found["saved"] = engine.save_16bit_model(folder) is not False
    engine.destroy()
    return found


def read_accelerate(config: dict) -> dict:
    """By `Accelerator.prepare`, in a loop that asks to clip at norm 7."""
    kept = as_json(config)
    try:
        with patch_environment(ACCELERATE_USE_DEEPSPEED="true"):
            ranks_like_gpus()
            accelerator = Accelerator(deepspeed_plugin=plugins.DeepSpeedPlugin(hf_ds_config=kept))
            model = small_model()
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            loader = DataLoader(TensorDataset(torch.ones(4, 8)), batch_size=2)
            model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
            for (batch,) in loader:
                batch = batch.to(next(model.parameters()).dtype)
                accelerator.backward(model(batch).float().pow(2).sum())
                accelerator.clip_grad_norm_(model.parameters(), 7.0)
                optimizer.step()
            found = {
                "clipping": float(model.gradient_clipping()),
                "stage": int(model.zero_optimization_stage()),
            }
            try:
                found["state_dict"] = str(len(accelerator.get_state_dict(model)))
            except ValueError as error:
                found["state_dict"] = refusal(error)
            accelerator.deepspeed_engine_wrapped.engine.destroy()
        return {"refused": "", **found}
    except Exception as error:  # noqa: BLE001
        return {"refused": refusal(error)}
    finally:
        GradientState._reset_state()
        AcceleratorState._reset_state(reset_partial_state=False)


def read_trainer(config: dict) -> dict:
    """What transformers' Trainer fills in; its arguments agree with the file's own numbers, as it demands."""
    kept = as_json(config)

    def number(key: str, usual: float) -> float:
        return kept[key] if isinstance(kept.get(key), int | float) else usual

    def is_on(width: str, usual: bool) -> bool:
        value = kept.get(width, {}).get("enabled", usual)
        return usual if value == "auto" else bool(value)

    half = is_on("fp16", False)
    brain = is_on("bf16", not half)
    arguments = SimpleNamespace(
        world_size=1, per_device_train_batch_size=number("train_micro_batch_size_per_gpu", 2),
        gradient_accumulation_steps=number("gradient_accumulation_steps", 1),
        max_grad_norm=number("gradient_clipping", 0.25),
        learning_rate=1e-3, adam_beta1=0.9, adam_beta2=0.95, adam_epsilon=1e-8, weight_decay=0.0,
        save_on_each_node=False, fp16=half, fp16_full_eval=False, bf16=brain, bf16_full_eval=False,
        get_warmup_steps=lambda _: 1,
    )  # fmt: skip
    given = kept.get("optimizer", {}).get("params", {})
    for name, argument in (
        ("lr", "learning_rate"),
        ("eps", "adam_epsilon"),
        ("weight_decay", "weight_decay"),
    ):
        if isinstance(given.get(name), float):
            setattr(arguments, argument, given[name])
    if isinstance(given.get("betas"), list):
        arguments.adam_beta1, arguments.adam_beta2 = given["betas"]
    schedule = kept.get("scheduler", {}).get("params", {})
    arguments.get_warmup_steps = lambda _: (
        schedule.get("warmup_num_steps", 1) if schedule.get("warmup_num_steps") != "auto" else 1
    )
    try:
        made = HfTrainerDeepSpeedConfig(kept)
        made.trainer_config_process(arguments)
        made.trainer_config_finalize(arguments, SimpleNamespace(config=SimpleNamespace(hidden_size=8)), 10)
        plugin = plugins.DeepSpeedPlugin(hf_ds_config=made)
        plugin.set_mixed_precision("bf16" if brain else "fp16" if half else "no")
        return read_json(plugin.deepspeed_config | {"steps_per_print": 1})
    except Exception as error:  # noqa: BLE001
        return {"refused": refusal(error)}
    finally:
        unset_hf_deepspeed_config()


def read_saving(config: dict) -> dict:
    """`Trainer.save_model` with an `Accelerator.get_state_dict` that refuses, as Accelerate's does."""
    from transformers import Trainer

    done: list[str] = []

    def refuse(_):
        raise ValueError("Cannot get 16bit model weights")

    def note(what: str):
        return lambda *_, **__: done.append(what)

    with tempfile.TemporaryDirectory() as folder:
        trainer = SimpleNamespace(
            args=SimpleNamespace(output_dir=folder, should_save=True, push_to_hub=False),
            is_fsdp_enabled=False, is_deepspeed_enabled=True, model=small_model(),
            model_wrapped=SimpleNamespace(save_checkpoint=note("shards")),
            deepspeed=SimpleNamespace(config=config), accelerator=SimpleNamespace(get_state_dict=refuse),
            _save=note("model"),
        )  # fmt: skip
        Trainer.save_model(trainer, folder)
    return {"refused": "", "saved_by_trainer": done}


def read_loading(config: dict) -> dict:
    """A small Llama by ``from_pretrained``, under the plugin that the YAML's variables make."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=16
    )
    found = launched(config)
    with tempfile.TemporaryDirectory() as folder:
        LlamaForCausalLM(shape).save_pretrained(folder)
        with patch_environment(**found["environment"]):
            plugin = plugins.DeepSpeedPlugin()
            plugin.select(_from_accelerator_state=True)
            model = LlamaForCausalLM.from_pretrained(folder)
    flag = plugin.zero3_init_flag
    unset_hf_deepspeed_config()
    return {"refused": "", "flag": flag, "sharded": all(hasattr(p, "ds_tensor") for p in model.parameters())}


# ------------------------------------------------------------------ all of them

READERS = {
    "yaml": read_yaml,
    "json": read_json,
    "engine": read_engine,
    "accelerate": read_accelerate,
    "trainer": read_trainer,
    "saving": read_saving,
    "loading": read_loading,
}


def one_rank() -> None:
    """A process group of this process alone, for the engines."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.update(
        RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
        GLOO_SOCKET_IFNAME="lo",
    )  # fmt: skip
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
    deepspeed.init_distributed("gloo", verbose=False)


def main() -> None:
    for name in launcher_variables(os.environ):  # a launcher's process is nobody's rank
        del os.environ[name]
    folder = Path(sys.argv[1])
    cases = json.loads((folder / "cases.json").read_text())
    found = {}
    for name, case in cases.items():
        if case["kind"] in ("yaml", "json"):
            found[name] = READERS[case.pop("kind")](**case)
    one_rank()
    for name, case in cases.items():
        if name not in found:
            found[name] = READERS[case.pop("kind")](**case)
    (folder / "found.json").write_text(json.dumps(found, default=str))
    torch.distributed.destroy_process_group()


main()
