"""Every entry of every catalogue loads, names its source, and unknown names get the nearest."""

import pytest

from workshop.facts import catalogue
from workshop.facts.implementation import implementation, own_tables
from workshop.facts.tables import from_table, table


@pytest.mark.parametrize("name", sorted(catalogue.models()))
def test_every_model_has_a_source(name):
    assert catalogue.model(name).source


@pytest.mark.parametrize("name", sorted(catalogue.devices()))
def test_every_figure_of_a_device_has_a_source(name):
    device = catalogue.device(name)
    assert device.source("memory_bytes")
    assert device.source("peak_flops")
    assert device.memory_bytes > 10**9
    # some GeForce cards clock higher than their sheet says; on others no product may be faster than the peak
    most = 1.15 if "RTX-" in name and "A6000" not in name else 1.0
    assert all(rate <= most * device.peak(dtype) for dtype, rate in device.reachable_flops.items())


@pytest.mark.parametrize("name", sorted(catalogue.links()))
def test_every_link_has_a_source_and_a_rate(name):
    link = catalogue.link(name)
    assert link.source
    assert link.bytes_per_second > 10**9


@pytest.mark.parametrize("name", sorted(table("clusters")))
def test_every_cluster_names_known_parts(name):
    assert catalogue.cluster(name).device.name in catalogue.devices()


@pytest.mark.parametrize("name", sorted(own_tables()))
def test_every_implementation_has_a_source(name):
    assert implementation(name).source


def test_peaks_are_dense():
    # The data sheet's 1,979 TFLOP/s in bf16 counts structured sparsity.
    assert catalogue.device("H100").peak("bf16") == 989e12
    assert catalogue.device("A100-80GB").peak("bf16") == 312e12


def test_a_count_of_devices_is_a_cluster():
    cluster = catalogue.cluster("64xH100")
    assert (cluster.num_devices, cluster.num_nodes, cluster.device.name) == (64, 8, "H100")
    assert cluster.link(range(8)).name == "nvlink-4"
    assert cluster.link([0, 8]).name == "infiniband-ndr"


def test_a_count_of_nodes_is_a_cluster():
    assert catalogue.cluster("16xdgx-a100").num_devices == 128


@pytest.mark.parametrize(
    ("find", "wrong", "message"),
    [
        (catalogue.model, "llama3", "did you mean 'llama-3-8b'"),
        (catalogue.model, "lama-3.1-8b", "did you mean 'llama-3.1-8b'"),
        (catalogue.device, "H10", "did you mean 'H100'"),
        (catalogue.link, "nvlink4", "did you mean 'nvlink-4'"),
        (catalogue.cluster, "8xH1000", "unknown cluster or device 'H1000'"),
        (implementation, "megatrom", "did you mean 'megatron'"),
    ],
)
def test_unknown_names_get_the_nearest(find, wrong, message):
    with pytest.raises(ValueError, match=message):
        find(wrong)


def test_an_unknown_format_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"A100-80GB has no known peak for 'fp8'.*known: fp32"):
        catalogue.device("A100-80GB").peak("fp8")


def test_unknown_keys_and_missing_ones_are_refused():
    spec = type(catalogue.model("gpt2"))
    with pytest.raises(ValueError, match="unknown key 'num_layer' in model 'm'; did you mean 'num_layers'"):
        from_table(spec, {"name": "m", "num_layer": 2}, "model 'm'")
    with pytest.raises(ValueError, match=r"model 'm' is incomplete: .*hidden_size"):
        from_table(spec, {"name": "m", "num_layers": 2}, "model 'm'")


def test_a_model_file_is_read(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("num_layers = 2\nhidden_size = 64\nnum_heads = 4\nvocab_size = 100\n")
    assert catalogue.read_model(path).name == "mine"
