"""Steps that work on sections of the batch: less memory, equal sums except for rounding."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import MIB, Losses, budget_of, deterministic, images, others_bytes, trained
from section_models import alike, built, data, known, records_since, straight, uneven, wide
from sectioned import filters, gradient, in_sections, numbers

import tfswap
from tfswap.hooks.static_step import StaticStep

BATCH, SECTIONS = 8, 4


def pooled(x: tf.Tensor) -> tf.Tensor:
    return tf.nn.max_pool2d(x, 2, 2, "SAME") + tf.nn.avg_pool2d(x, 2, 2, "SAME")


def filter_gradient(x: tf.Tensor) -> tf.Tensor:
    weights = filters(3, 3, 3, 5)
    with tf.GradientTape() as tape:
        tape.watch(weights)
        made = tf.nn.conv2d(x, weights, 1, "SAME") ** 2
    return tape.gradient(made, weights)


def weight_gradient(x: tf.Tensor) -> tf.Tensor:
    weights, bias = filters(6, 3), filters(3)
    with tf.GradientTape() as tape:
        tape.watch([weights, bias])
        made = tf.nn.tanh(tf.nn.bias_add(x @ weights, bias))
    found = tape.gradient(made, [weights, bias])
    return tf.concat([found[0], found[1][tf.newaxis]], 0)


def attended(x: tf.Tensor) -> tf.Tensor:
    scores = tf.nn.softmax(tf.einsum("bqd,bkd->bqk", x, x))
    return tf.einsum("bqk,bkd->bqd", scores, x) + tf.matmul(scores, x)


def shaped(x: tf.Tensor) -> tf.Tensor:
    x = tf.transpose(tf.reshape(x, [BATCH, 4, 4, 3]), [0, 3, 1, 2])
    x = tf.pad(tf.concat([x, x * 2], axis=1), [[0, 0], [0, 0], [1, 1], [1, 1]])
    x = tf.stack(tf.unstack(x, axis=1), axis=2)[:, 1:, ::2]
    first, second = tf.split(x, 2, axis=3)
    return tf.squeeze(tf.expand_dims(tf.tile(first - second, [1, 1, 2, 1]), 1), 1)


def losses(x: tf.Tensor) -> tf.Tensor:
    labels = tf.argmax(x, axis=1)
    sparse = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, x)
    dense = tf.nn.softmax_cross_entropy_with_logits(tf.one_hot(labels, 6), x)
    return tf.where(sparse > 1.0, sparse, dense) * tf.broadcast_to(tf.constant(0.5), [BATCH])


# A function, its input shapes, and whether its result is a sum over the batch.
CASES = {
    "elementwise": (
        lambda x: tf.nn.relu(x) * x + tf.exp(-x) / (1.0 + tf.abs(x)),
        (BATCH, 6),
        False,
    ),
    "broadcasting": (lambda x: x * filters(6) + filters(1, 6) - x[:, :1], (BATCH, 6), False),
    "convolution": (
        lambda x: tf.nn.relu(tf.nn.conv2d(x, filters(3, 3, 3, 5), 1, "SAME")),
        (BATCH, 8, 8, 3),
        False,
    ),
    "depthwise": (
        lambda x: tf.nn.depthwise_conv2d(x, filters(3, 3, 3, 1), [1, 1, 1, 1], "SAME"),
        (BATCH, 8, 8, 3),
        False,
    ),
    "input gradient": (
        gradient(lambda x: tf.nn.conv2d(tf.nn.elu(x), filters(3, 3, 3, 5), 1, "SAME") ** 2),
        (BATCH, 8, 8, 3),
        False,
    ),
    "filter gradient": (filter_gradient, (BATCH, 8, 8, 3), True),
    "weight gradient": (weight_gradient, (BATCH, 6), True),
    "pooling": (pooled, (BATCH, 8, 8, 3), False),
    "pooling's gradient": (gradient(pooled), (BATCH, 8, 8, 3), False),
    "attention": (attended, (BATCH, 5, 6), False),
    "shapes": (shaped, (BATCH, 48), False),
    "losses": (losses, (BATCH, 6), False),
    "reductions": (
        lambda x: tf.reduce_max(x, 2) + tf.reduce_mean(x, [-1]) - tf.reduce_sum(x, 2),
        (BATCH, 5, 6),
        False,
    ),
    "sum": (lambda x: tf.reduce_sum(tf.square(x), [0, 1]), (BATCH, 5, 6), True),
    "mean": (lambda x: tf.reduce_mean(tf.square(x), [0, 2]), (BATCH, 5, 6), True),
    "embedding": (
        lambda x: tf.gather(filters(10, 4), tf.cast(tf.abs(x), tf.int32)),
        (BATCH, 5),
        False,
    ),
    "resizing": (
        gradient(lambda x: tf.image.resize(x * x, [16, 16]) ** 2),
        (BATCH, 8, 8, 3),
        False,
    ),
    "moments": (
        lambda x: (x - tf.nn.moments(x, [0, 1])[0]) / tf.nn.moments(x, [0, 1])[1],
        (BATCH, 5, 6),
        True,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_ops_work_on_sections(lib, case):
    compute, shape, is_sum = CASES[case]
    found, expected, nodes = in_sections(lib, compute, numbers(*shape), SECTIONS)
    # Sections are joined only at the end.
    assert sum(name.endswith("/whole") for name in nodes) <= 1, nodes
    tolerance = 1e-5 if is_sum else 1e-6
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def with_batch_norm() -> keras.Model:
    x = inputs = keras.Input((48, 48, 3))
    for _ in range(4):
        x = keras.layers.Conv2D(16, 1, use_bias=False)(x)
        x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(4)(x))


@pytest.mark.parametrize("build", [straight, with_batch_norm])
def test_a_model_in_sections_has_the_same_losses_except_for_rounding(build):
    unswapped = trained(built(build), batch_size=64, data=data())
    swap = tfswap.AutoSwap(budget="4GiB", sections=8, verbose=0)
    cut = trained(built(build), [swap], batch_size=64, data=data())
    alike(cut, unswapped)
    assert any(record["sectioned_ops"] > 20 for record in tfswap.status()["functions"])
    needed, before = (max(each.peaks) - each.others_bytes for each in (cut, unswapped))
    # Tensors that wait for statistics are kept for all sections.
    assert needed < (0.7 if build is straight else 1.0) * before


@pytest.mark.slow
def test_without_batch_statistics_only_one_section_is_in_memory(tmp_path):
    deterministic()
    unswapped = trained(built(straight), batch_size=128, data=data())
    alone = max(unswapped.peaks) - unswapped.others_bytes
    # At most two sections' activations are in memory, plus the prefetched batches.
    budget = others_bytes() + alone // 4 + 16 * MIB
    path = tmp_path / "plan.json"
    swap = tfswap.AutoSwap(budget=budget, sections=16, save_plan=path, verbose=0)
    fit = {"batch_size": 128, "data": data(), "epochs": 6}
    cut = trained(built(straight), [swap], **fit)
    alike(cut, unswapped)
    assert max(cut.peaks) <= budget
    if not path.exists():  # it fits without a plan
        return
    assert tfswap.SwapPlan.load(path).sections == 16
    again = tfswap.AutoSwap(budget=budget, plan=path, verbose=0)
    assert trained(built(straight), [again], **fit).losses == cut.losses


@pytest.mark.slow
def test_sections_that_wait_for_statistics_are_swapped():
    deterministic()
    fit = {"batch_size": 64, "data": data(), "epochs": 4}
    whole = trained(built(with_batch_norm), **fit)
    plain = tfswap.AutoSwap(budget="4GiB", sections=4, verbose=0)
    expected = trained(built(with_batch_norm), [plain], **fit)
    budget = budget_of(whole, 0.6)
    swap = tfswap.AutoSwap(budget=budget, sections=4, verbose=0)
    found = trained(built(with_batch_norm), [swap], **fit)
    assert found.losses == expected.losses
    assert max(found.peaks) <= budget
    assert tfswap.memory_stats()["bytes_out"] > 0


def test_a_large_tensor_moves_in_sections_each_from_a_planned_address(tmp_path):
    path = tmp_path / "plan.json"
    fit = {"batch_size": 64, "data": data(), "epochs": 5}
    whole = trained(built(with_batch_norm), **fit)
    budget = budget_of(whole, 0.6)
    options = {"sections": 4, "policy": "greedy", "save_plan": path, "verbose": 0}
    swap = tfswap.AutoSwap(budget=budget, slab=True, **options)
    trained(built(with_batch_norm), [swap], **fit)
    (function,) = tfswap.SwapPlan.load(path).functions
    parts: dict[str, set[str]] = {}
    for moved in function.swaps:
        if moved.tensor == "IteratorGetNext:0":
            continue  # the batch, of which each section takes its part
        tensor, cut, part = moved.tensor.rpartition("/section_")
        assert cut, moved.tensor  # no other tensor moves whole
        parts.setdefault(tensor, set()).add(part.removesuffix(":0"))
    assert {"0", "1", "2", "3"} in parts.values()
    places = {slot.op for layout in function.layouts for slot in layout if slot.offset_bytes >= 0}
    placed = [f"{tensor}/section_{part}" in places for tensor in parts for part in parts[tensor]]
    # Others get theirs from an op that forwards its input.
    assert sum(placed) >= 0.5 * len(placed)


def test_a_batch_that_is_no_multiple_is_not_cut_and_reported():
    swap = tfswap.AutoSwap(budget="4GiB", sections=5, verbose=0)
    build = built(lambda: straight(2, size=16))
    fit = {"batch_size": 64, "data": (images(256, 16)[0], data()[1])}
    with pytest.warns(UserWarning, match="sections=5 has no effect"):
        cut = trained(build, [swap], **fit)
    assert cut.losses == trained(build, **fit).losses


def test_batches_of_unknown_size_and_the_smaller_last_one_are_cut():
    fit = {"batch_size": 48, "data": uneven(), "epochs": 2}
    whole = trained(built(straight), **fit)
    before, budget = known(), others_bytes() + 30 * MIB
    swap = tfswap.AutoSwap(budget=budget, sections=8, verbose=0)
    cut = trained(built(straight), [swap], **fit)
    alike(cut, whole)
    assert len(cut.losses) == len(whole.losses) == 10
    assert max(cut.peaks) <= budget < max(whole.peaks)
    # Sections of 5 examples, since 20 has no larger divisor of at most 6.
    made = {r["examples"]: r["sections"] for r in records_since(before) if r["sectioned_ops"]}
    assert made == {48: 8, 20: 4}
    assert swap.report.sections == 8


def test_a_step_on_data_of_known_size_equals_that_on_a_dataset_of_known_size():
    deterministic()
    data = tf.data.Dataset.from_tensor_slices(uneven())
    static = data.batch(48, drop_remainder=True)

    def losses(batches, sections: int | None) -> list[float]:
        keras.utils.set_random_seed(7)
        found = Losses()
        swap = tfswap.AutoSwap(budget="4GiB", sections=sections, verbose=0)
        built(straight)().fit(batches, epochs=2, verbose=0, callbacks=[swap, found])
        return found.losses

    expected = losses(static, None)
    unknown = data.take(192).batch(48)
    assert unknown.element_spec[0].shape[0] is None
    step = losses(unknown, 4)
    np.testing.assert_allclose(step, expected, rtol=1e-4)
    assert losses(static, 4) == step


def test_the_model_gets_its_own_training_function_back():
    model = built(straight)()
    x, y = uneven()
    model.fit(x[:48], y[:48], batch_size=32, verbose=0)
    own = model.train_function
    swap = tfswap.AutoSwap(budget="4GiB", sections=2, verbose=0)
    for _ in range(2):
        model.fit(x[:48], y[:48], batch_size=32, verbose=0, callbacks=[swap])
        assert model.train_function is own
    model.fit(x[:48], y[:48], batch_size=32, verbose=0)


@pytest.mark.slow
def test_validation_is_cut_too():
    fit = {"batch_size": 48, "data": uneven(), "epochs": 2, "validation_data": uneven()}
    whole = trained(built(wide), **fit)
    budget = others_bytes() + 60 * MIB
    for sections in (16, "auto"):
        swap = tfswap.AutoSwap(budget=budget, sections=sections, verbose=0)
        cut = trained(built(wide), [swap], **fit)
        alike(cut, whole)
        assert max(cut.peaks) <= budget < max(whole.peaks)


def test_new_batch_sizes_are_not_traced_one_by_one():
    model, warned = built(lambda: straight(1))(), []
    step = StaticStep(model, model.test_step, warned.append)
    x, y = uneven()
    for size in range(1, 13):
        batch = iter(tf.data.Dataset.from_tensor_slices((x, y)).batch(size))
        step(step.batch_of(batch))
    assert step._of_a_size.experimental_get_tracing_count() == 8
    assert step._of_any.experimental_get_tracing_count() <= 2
    (text,) = warned
    assert text.startswith("there are batches of more than 8 sizes")


class OwnFunction(keras.Model):
    def make_train_function(self, force=False):
        return super().make_train_function(force)


def test_a_model_without_sections_is_reported_with_the_reason():
    x, y = uneven()

    def fitted(model: keras.Model, **options) -> tfswap.AutoSwap:
        model.compile("sgd", "categorical_crossentropy", jit_compile=False, **options)
        swap = tfswap.AutoSwap(budget="4GiB", sections=4, verbose=0)
        model.fit(x, y, batch_size=48, verbose=0, callbacks=[swap])
        return swap

    inner = straight(2)
    with pytest.warns(UserWarning, match="no effect: .*overrides make_train_function"):
        swap = fitted(OwnFunction(inner.inputs, inner.outputs))
    assert swap.report.sections == 1
    with pytest.warns(UserWarning, match="has no effect: loops .steps_per_execution"):
        fitted(straight(2), steps_per_execution=2)


@pytest.mark.slow
def test_the_ilp_plans_for_sections():
    fit = {"batch_size": 64, "data": data(), "epochs": 4}
    whole = trained(built(with_batch_norm), **fit)
    budget = budget_of(whole, 0.6)
    swap = tfswap.AutoSwap(budget=budget, sections=4, policy="tvdnn_ilp", verbose=0)
    cut = trained(built(with_batch_norm), [swap], **fit)
    alike(cut, whole)
    assert max(cut.peaks) <= budget
    assert swap.report.outcome == "swapped" and swap.report.sections == 4
    assert ", 4 sections of the batch" in swap.report.summary()
