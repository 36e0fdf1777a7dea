"""Answers to 06/shard_plan: how the layers of three models are shared, within their budgets.

An answer is a function of the given values that returns what is handed in.
"""

import functools

from dtlab.units.unit06.plans_rules import attention_left_whole, fitting, megatron, model_of

PLAIN, HEADS, TIGHT = 2, 4, 3  # ranks of each kind of model


def models(given):
    return {name: model_of(given[name]) for name in ("a", "b", "c")}


def best(given, which=0):
    return {name: dict(fitting(model)[which]) for name, model in models(given).items()}


def changed(ranks):
    """The right plans, but for that of the model on so many ranks: `change(model, its plan)`."""

    def decorate(change):
        @functools.wraps(change)
        def answer(given):
            plans = best(given)
            for name, model in models(given).items():
                if model.ranks == ranks:
                    plans[name] = change(model, plans[name])
            return plans

        return answer

    return decorate


def odd_block(model):
    """The block whose heads cannot be dealt out."""
    return next(n for n, one in enumerate(model.blocks) if one.kv_heads % model.ranks)


def everywhere(plan, kind, *ends):
    """The plan with all layers called so being of this kind."""
    return {name: kind if name.endswith(ends) else own for name, own in plan.items()}


# Wrong ------------------------------------------------------------------------------------------


def all_replicated(given):
    return {
        name: dict.fromkeys(model.shapes, "replicated") for name, model in models(given).items()
    }


def as_megatron(given):
    """Right for one of them: the heads of another do not divide, and calls are too few."""
    return {name: dict(megatron(model)) for name, model in models(given).items()}


@changed(PLAIN)
def a_gathered_head(model, plan):
    return {**plan, "head": "column+gather"}


@changed(PLAIN)
def gathered_and_cut_again(model, plan):
    """An MLP with both collectives that nobody needs."""
    return {**plan, "0.wide": "column+gather"}


@changed(PLAIN)
def column_after_column(model, plan):
    return {**plan, "1.narrow": "column"}


@changed(PLAIN)
def whole_after_column(model, plan):
    return {**plan, "1.narrow": "replicated"}


@changed(PLAIN)
def a_whole_table(model, plan):
    return {**plan, "embedding": "replicated"}


@changed(PLAIN)
def a_whole_head(model, plan):
    return {**plan, "head": "replicated"}


@changed(PLAIN)
def attention_whole(model, plan):
    return dict(attention_left_whole(model))


@changed(HEADS)
def heads_that_do_not_divide(model, plan):
    return dict(megatron(model))


@changed(HEADS)
def odd_attention_whole(model, plan):
    odd = odd_block(model)
    return {**plan, f"{odd}.qkv": "replicated", f"{odd}.projection": "replicated"}


@changed(HEADS)
def gathered_in_both_blocks(model, plan):
    return everywhere(everywhere(plan, "column+gather", "qkv"), "row", "projection")


@changed(HEADS)
def projection_whole(model, plan):
    return {**plan, f"{odd_block(model)}.projection": "replicated"}


@changed(TIGHT)
def the_table_alone(model, plan):
    return {**plan, "embedding": "vocabulary", "head": "replicated"}


@changed(TIGHT)
def a_row_parallel_head(model, plan):
    return {**plan, "embedding": "vocabulary", "head": "row"}


@changed(TIGHT)
def everything_shared(model, plan):
    return dict(megatron(model))


@changed(TIGHT)
def both_mlps_whole(model, plan):
    return dict(megatron(model, [f"{n}.{name}" for n in (0, 1) for name in ("wide", "narrow")]))


@changed(TIGHT)
def both_attentions_whole(model, plan):
    return dict(attention_left_whole(model))


@changed(TIGHT)
def a_layer_left_out(model, plan):
    return {name: kind for name, kind in plan.items() if name != "1.qkv"}


@changed(TIGHT)
def a_layer_too_many(model, plan):
    return {**plan, "loss": "vocabulary"}


@changed(TIGHT)
def another_word(model, plan):
    return {**plan, "0.wide": "columns"}


@changed(TIGHT)
def a_list(model, plan):
    return list(plan.values())


# Right ------------------------------------------------------------------------------------------


def the_first_that_fits(given):
    return best(given)


def the_last_that_fits(given):
    return best(given, -1)


def spelled_otherwise(given):
    return {
        name: {layer: f" {kind.replace('+', ' + ').title()} " for layer, kind in plan.items()}
        for name, plan in best(given, -1).items()
    }


RIGHT = [the_first_that_fits, the_last_that_fits, spelled_otherwise]

# Of the learner seed0: which of its models is of which kind.
A = dict(zip((PLAIN, TIGHT, HEADS), "abc", strict=True))

WRONG = {
    all_replicated: dict.fromkeys("abc", "is the largest of them"),
    as_megatron: {A[HEADS]: "in whole heads", A[TIGHT]: "the budget is 5"},
    a_gathered_head: {A[PLAIN]: "bytes in a step, and the budget is"},
    gathered_and_cut_again: {A[PLAIN]: "can the next layer, or the loss, use in parts?"},
    column_after_column: {A[PLAIN]: "must be whole on every rank"},
    whole_after_column: {A[PLAIN]: "only a part of the features there"},
    a_whole_table: {A[PLAIN]: "Every rank has embedding whole"},
    a_whole_head: {A[PLAIN]: "Every rank has head whole"},
    attention_whole: {A[PLAIN]: "more than the budget"},
    heads_that_do_not_divide: {A[HEADS]: "in whole heads"},
    odd_attention_whole: {A[HEADS]: "more than the budget"},
    gathered_in_both_blocks: {A[HEADS]: "can the next layer, or the loss, use in parts?"},
    projection_whole: {A[HEADS]: "projection whole"},
    the_table_alone: {A[TIGHT]: "are one weight here"},
    a_row_parallel_head: {A[TIGHT]: "are one weight here"},
    everything_shared: {A[TIGHT]: "Which layers have the fewest bytes"},
    both_mlps_whole: {A[TIGHT]: "more than the budget"},
    both_attentions_whole: {A[TIGHT]: "more than the budget"},
    a_layer_left_out: {A[TIGHT]: "has no '1.qkv'"},
    a_layer_too_many: {A[TIGHT]: "which is no layer"},
    another_word: {A[TIGHT]: "write one of"},
    a_list: {A[TIGHT]: "write a dict"},
}
