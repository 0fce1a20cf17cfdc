"""Names that torch, numpy and other libraries have for an argument of flodl."""

from __future__ import annotations

from collections.abc import Sequence

# Arguments of flodl, each with other names for it; a name may stand for several.
_OTHER_NAMES = {
    "dim": "axis dims axes",
    "top_k": "topk k num_selected experts_per_token num_experts_per_tok",
    "k": "topk top_k num_selected n",
    "n": "num count number times patience window steps num_iter n_iter iterations max_iter repeats last k p",
    "max_iter": "n num count times steps num_iter n_iter iterations max_iters maxiter limit max_steps",
    "repeats": "n num count times number iterations",
    "count": "n num number size",
    "top": "k n",
    "tol": "eps atol rtol threshold epsilon delta min_delta",
    "mode": "direction",
    "reduce": "reduction op",
    "op": "mode how fn function reduction operation",
    "init": "initial initial_value initializer default start",
    "body": "module layer fn function block model",
    "module": "layer fn function body block model",
    "modules": "layers branches modulelist experts",
    "branches": "modules layers experts cases options choices",
    "experts": "modules layers branches",
    "router": "gate gating gate_network",
    "selector": "router index condition",
    "cond": "condition predicate until halt",
    "skip": "shortcut left residual",
    "main": "body right",
    "batched": "vectorized batch vmap",
    "masked": "dense soft",
    "example": "input inputs x sample example_inputs example_input",
    "in_features": "dim in_dim input_dim input_size in_channels d_model hidden_size",
    "num_choices": "n num_experts n_experts out_features num_classes num_branches",
    "threshold": "tol eps p",
    "index": "i idx choice position",
    "name": "tag label key",
    "tag": "name key path",
    "path": "file filename fname name pattern tag file_path filepath target",
    "target": "path file filename f",
    "source": "path file filename f",
    "value": "loss x val",
    "weight": "n batch_size count w",
    "total_epochs": "epochs num_epochs n_epochs max_epochs",
    "names": "tags metrics columns keys",
    "eval_mode": "eval evaluation",
    "prefix": "path",
    "help": "description doc",
    "choices": "options values",
    "env": "envvar env_var environment",
    "short": "flag alias",
    "completer": "completion autocomplete shell_complete",
    "depth": "queue_size buffer size max_queue",
}
_MEANT = {
    name: [one for one, others in _OTHER_NAMES.items() if name in others.split()]
    for others in _OTHER_NAMES.values()
    for name in others.split()
}


def synonym(name: str, known: Sequence[str]) -> str | None:
    """Return the argument that is called `name` elsewhere, if there is one.

    >>> synonym("axis", ["op", "dim"]), synonym("axis", ["path"])
    ('dim', None)
    """
    return next((one for one in _MEANT.get(name, ()) if one in known), None)
