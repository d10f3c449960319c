import keras
import numpy as np
import pytest

from keras_vit.layers import MlpBlock
from keras_vit.layers.kernels import dense as project
from tests.tiny import noise, randomize

torch = pytest.importorskip("torch")
if keras.backend.backend() != "torch":
    pytest.skip("of PyTorch alone", allow_module_level=True)
from keras_vit.layers import kernels_torch  # noqa: E402

pytestmark = [
    pytest.mark.skipif(
        keras.backend.backend() != "torch", reason="of PyTorch alone"
    ),
    # PyTorch's derivatives forward import it.
    pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning"),
]
OPERATIONS = ("mkldnn", "keras_vit.multiply", "Product")


@pytest.fixture(autouse=True)
def on_amd(monkeypatch):
    """Compute as on a processor on which it is faster."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("This PyTorch has no oneDNN.")
    if not kernels_torch.ONEDNN_IS_FASTER:
        operation = kernels_torch.define_operation()
        monkeypatch.setattr(kernels_torch, "COMPILED_PRODUCT", operation)
        monkeypatch.setattr(kernels_torch, "ONEDNN_IS_FASTER", True)


def needs_bfloat16():
    """Skip the test on a processor without products in bfloat16."""
    x = torch.zeros((2, 2), dtype=torch.bfloat16)
    try:
        kernels_torch._run_onednn(None, x, x, "none", "")
    except RuntimeError as error:
        if "could not create a primitive" not in str(error):
            raise
        pytest.skip("This processor multiplies no bfloat16 by oneDNN.")


def tensors(dtype=torch.float32):
    """Return a bias and two matrices, (5, 6) and (6, 4)."""
    arrays = (noise(4, seed=1), noise(5, 6, seed=2), noise(6, 4, seed=3))
    return [
        torch.tensor(array, dtype=dtype, requires_grad=True) for array in arrays
    ]


def dense(**options):
    layer = keras.layers.Dense(4, **options)
    layer.build((None, 6))
    return randomize(layer)


def gradients(function, inputs):
    """Return the result, its gradients, and the gradients of these."""
    y = function(*inputs)
    first = torch.autograd.grad((y**3).sum(), inputs, create_graph=True)
    second = torch.autograd.grad(sum((g**2).sum() for g in first), inputs)
    return [y, *first, *second]


@pytest.mark.parametrize("has_bias", [True, False])
def test_values_and_two_gradients_are_those_of_float64(has_bias):
    own, exact = tensors(), tensors(torch.float64)
    multiply = kernels_torch.find_onednn_product(*own[1:])
    if has_bias:
        found = gradients(multiply, own)
        expected = gradients(torch.addmm, exact)
    else:
        found = gradients(lambda x, y: multiply(None, x, y), own[1:])
        expected = gradients(torch.matmul, exact[1:])
    assert "mkldnn" not in str(found[0].grad_fn)
    for one, other in zip(found, expected, strict=True):
        other = other.detach().numpy()
        scale = np.abs(other).max()
        np.testing.assert_allclose(
            one.detach().numpy(), other, atol=1e-6 * scale
        )


@pytest.mark.parametrize(("features", "units"), [(768, 3072), (3072, 768)])
def test_rounding_errors_in_the_mlps_of_b16_are_small(features, units):
    x = torch.tensor(noise(197, features, seed=1))
    y = torch.tensor(noise(features, units, seed=2))
    exact = x.double() @ y.double()
    bound = 2e-6 * exact.abs().max()
    product = kernels_torch.find_onednn_product(x, y)(None, x, y)
    assert (product - exact).abs().max() < bound
    assert (x @ y - exact).abs().max() < bound


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: lambda x: torch.vmap(f)(torch.stack([x, 2 * x])),
        lambda f: lambda x: torch.func.jvp(f, (x,), (x + 1,))[1],
        lambda f: torch.func.jacfwd(f),
        lambda f: torch.func.jacrev(f),
        lambda f: torch.func.hessian(lambda x: (f(x) ** 3).sum()),
    ],
    ids=["vmap", "jvp", "jacfwd", "jacrev", "hessian"],
)
@pytest.mark.parametrize("argument", [0, 1, 2])
def test_transformations_are_those_of_pytorch_s_product(transform, argument):
    inputs = [tensor.detach() for tensor in tensors()]
    assert kernels_torch.find_onednn_product(*inputs[1:], inputs[0])

    def product(bias, x, y):
        multiply = kernels_torch.find_onednn_product(x, y, bias)
        return (multiply or torch.addmm)(bias, x, y)

    def call(function):
        def of_one(tensor):
            return function(
                *(tensor if i == argument else x for i, x in enumerate(inputs))
            )

        return transform(of_one)(inputs[argument]).numpy()

    np.testing.assert_allclose(call(product), call(torch.addmm), atol=1e-4)


@pytest.mark.parametrize("use_bias", [True, False])
def test_a_compiled_projection_is_one_operation(use_bias):
    layer, names = dense(use_bias=use_bias), []
    x = torch.tensor(noise(5, 6), requires_grad=True)

    def compiler(graph, inputs):
        names.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    compiled = torch.compile(
        lambda x: project(layer, x), backend=compiler, fullgraph=True
    )
    y, expected = compiled(x), project(layer, x)
    assert [n for n in names if "multiply" in n], names
    assert y.equal(expected)
    inputs = (x, *layer.trainable_variables)
    inputs = [getattr(tensor, "value", tensor) for tensor in inputs]
    for found, wanted in zip(
        torch.autograd.grad(y.sum(), inputs),
        torch.autograd.grad(expected.sum(), inputs),
        strict=True,
    ):
        assert found.equal(wanted)


def test_the_whole_operation_is_compiled_as_pytorch_wants_it():
    """Also its gradients, and sizes that are not known yet."""
    torch.library.opcheck(kernels_torch.COMPILED_PRODUCT, tuple(tensors()))


def test_an_exported_projection_needs_no_operation_of_ours():
    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = dense()

        def forward(self, x):
            return project(self.layer, x)

    x = torch.tensor(noise(5, 6))
    programs = [
        torch.export.export(Module(), (x,), strict=strict)
        for strict in (False, True)
    ]
    traced = torch.jit.trace(Module(), x, check_trace=False)
    for text in map(str, [*programs, traced.graph]):
        assert "addmm" in text
        assert not any(name in text for name in OPERATIONS), text


def test_other_products_are_left_to_pytorch(monkeypatch):
    _, x, y = tensors()
    assert kernels_torch.find_onednn_product(x, y)
    monkeypatch.setattr(kernels_torch, "HAS_AMX", False)
    assert not kernels_torch.find_onednn_product(x.bfloat16(), y.bfloat16())
    monkeypatch.setattr(kernels_torch, "HAS_AMX", True)
    assert kernels_torch.find_onednn_product(x.bfloat16(), y.bfloat16())
    assert not kernels_torch.find_onednn_product(x.bfloat16(), y)
    assert not kernels_torch.find_onednn_product(x.half(), y.half())
    assert not kernels_torch.find_onednn_product(x.double(), y.double())
    assert not kernels_torch.find_onednn_product(x.to("meta"), y)

    class Other(torch.Tensor):
        """A tensor that does something else."""

    assert not kernels_torch.find_onednn_product(x, y.as_subclass(Other))
    with torch.autocast("cpu"):
        assert not kernels_torch.find_onednn_product(x, y)
    torch.backends.mkldnn.set_flags(False)
    try:
        assert not kernels_torch.find_onednn_product(x, y)
    finally:
        torch.backends.mkldnn.set_flags(True)


@pytest.mark.parametrize("needed", [1, 2])
def test_a_gradient_that_nobody_needs_is_not_computed(needed, monkeypatch):
    inputs = [tensor.detach() for tensor in tensors()]
    inputs[needed].requires_grad = True
    apply = kernels_torch.find_onednn_product(*inputs[1:])
    y = apply(*inputs)
    products, multiply = [], kernels_torch._multiply
    monkeypatch.setattr(
        apply.__self__,
        "forward",
        lambda *tensors: products.append(1) or multiply(*tensors),
    )
    y.sum().backward()
    assert len(products) == 1


def test_values_and_gradients_in_bfloat16_are_those_of_pytorch(monkeypatch):
    needs_bfloat16()
    monkeypatch.setattr(kernels_torch, "HAS_AMX", True)
    inputs, exact = tensors(torch.bfloat16), tensors(torch.float64)
    multiply = kernels_torch.find_onednn_product(*inputs[1:])
    found = gradients(multiply, inputs)
    for one, other in zip(found, gradients(torch.addmm, exact), strict=True):
        error = (one.double() - other).abs().max()
        assert error < 0.03 * other.abs().max()


def test_the_gelu_of_inference_is_that_of_float64(monkeypatch):
    """Also of many numbers, large ones, and those that are not neighbours."""
    monkeypatch.setattr(kernels_torch, "NUMBERS_IN_CACHE", 7)
    monkeypatch.setattr(kernels_torch, "ONEDNN_IS_FASTER", False)
    layer = keras.layers.Dense(1)
    layer.build((None, 1))
    x = torch.tensor([*noise(40), 0.0, -0.0, 3e38, -3e38, np.inf, -90.0])
    exact = torch.nn.functional.gelu(x.double(), approximate="tanh")
    for given in (x.clone(), x.clone().repeat(2, 1).t()):
        with torch.no_grad():
            found = kernels_torch.activate("tanh", None, given, False, layer)
        assert found is given  # In its memory.
        found = found.double() if found.ndim == 1 else found[:, 0].double()
        assert found.isfinite().equal(exact.isfinite())
        is_large = exact.abs() > 1e6
        assert found[is_large].equal(exact[is_large])
        assert (found - exact)[~is_large].abs().max() < 1e-6


@pytest.mark.parametrize("name", ["tanh", "exact"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_gelu_is_computed_within_the_product(name, dtype, monkeypatch):
    monkeypatch.setattr(kernels_torch, "HAS_AMX", True)
    if dtype == "bfloat16":
        needs_bfloat16()
    arguments, run = [], kernels_torch._run_onednn
    monkeypatch.setattr(
        kernels_torch,
        "_run_onednn",
        lambda *given: arguments.append(given[3:]) or run(*given),
    )
    layer = MlpBlock(8, activation=name, dtype=dtype)
    x = torch.tensor(noise(2, 3, 6), dtype=getattr(torch, dtype))
    layer.build(x.shape)
    randomize(layer)
    expected = layer(x)  # With gradients, which need its argument.
    assert {activation for activation, _ in arguments} == {"none"}
    arguments.clear()
    with torch.no_grad():
        found = layer(x)
        trained = layer(x, training=True)
    algorithm = {"tanh": "tanh", "exact": "none"}[name]
    assert arguments[0] == ("gelu", algorithm)
    assert {activation for activation, _ in arguments[1:]} == {"none"}
    assert trained.equal(expected)
    bound = {"float32": 1e-6, "bfloat16": 0.02}[dtype]
    assert (found - expected).abs().max() < bound * expected.abs().max()
