"""`rawkern.autotune`: a kernel that is timed in several configurations and then launched in the fastest one."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rawkern.base import markup
from rawkern.base.api_boundary import api_boundary
from rawkern.base.dynamo import untraced
from rawkern.base.nearest import did_you_mean
from rawkern.base.shared import Shared
from rawkern.estimation.cards import card_named
from rawkern.kernel import RawKernel
from rawkern.tuning.choices import KEPT, Choices, Search, Settings
from rawkern.tuning.configs import LAUNCH, Config, places, read, rejection, shown, unused
from rawkern.tuning.keys import Key
from rawkern.tuning.launches import TunedLauncher, forced
from rawkern.tuning.record import Tuning
from rawkern.tuning.session import Settle


@api_boundary
def autotune(
    kernel: RawKernel,
    configs: Sequence[Mapping[str, Any]] | Mapping[str, Sequence[Any]],
    *,
    key: Sequence[str] | Callable[..., Any] = (),
    where: Callable[[Config], Any] | None = None,
    reference: Callable[..., Any] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    search: str | Callable[..., Any] | None = None,
    search_options: Mapping[str, Any] | None = None,
    retune: bool = False,
    estimate: str | None = None,
) -> TunedKernel:
    """Return a kernel that its first launch times in several configurations, and that then runs in the fastest.

    Nothing is timed while a CUDA graph is captured, under `rawkern.check` or in an operator's fake implementation.

    Parameters
    ----------
    kernel : RawKernel
        Its name may have places for template arguments: ``RawKernel(code, "transpose<float, {TILE}>")``.
    configs : list of dicts, or dict of lists
        What to try: each configuration, or for each name its values, of which all combinations are taken. These names
        say how to launch: ``block``, ``grid`` and ``cluster`` (an int or a tuple), ``shared_mem`` (bytes). ``options``
        is a tuple of compiler options. Every other name is a template argument where the kernel's name has it in
        braces, else a macro (``-DNAME=VALUE``); a value is a number, a bool or a string.
    key : sequence of str, or function, optional
        If one of these changes, the kernel is measured again: names of parameters (a number counts by its value, a
        tensor by dtype and shape), or a function of all arguments that returns numbers, strings, dtypes or tuples of
        them, such as ``lambda n, x, y: n.bit_length()``. The device's model always counts.
    where : function, optional
        Of a configuration: whether to try it.
    reference : function, optional
        Of all arguments. It returns what the tensors that the kernel writes should hold afterwards, in the order of
        the parameters, or writes that into them itself and returns None; None arguments are left out, or None.
        Configurations that give something else are rejected.
    rtol, atol : float, optional
        For that comparison; by default those of `torch.testing.assert_close` for the dtypes.
    search : str or function, optional
        A strategy of Kernel Tuner (``"genetic_algorithm"``, ``"bayes_opt"``) in place of trying all; ``configs`` is
        then a dict of lists, and ``where`` its restriction. Or a function of Kernel Tuner's cost function and search
        space, as its ``OptAlg``. Needs Kernel Tuner: rawkern's extra ``tune``.
    search_options : dict, optional
        Kernel Tuner's ``strategy_options``: ``max_fevals``, ``time_limit`` (seconds) and the strategy's own.
    retune : bool
        Measure even if the disk has a choice, once for each key in this process.
    estimate : str, optional
        A GPU such as ``"h100"``: nothing is timed; the configuration with the lowest ``estimate`` for that GPU with
        cold caches is used.

    Returns
    -------
    TunedKernel
        Launch it as a kernel.

    Raises
    ------
    TypeError, ValueError
        For settings that cannot work.
    LaunchError
        At a launch: no configuration works, or there is no choice yet where nothing may be timed.

    Notes
    -----
    Memory that a kernel writes is saved and restored before each of its runs; after the first launch it is as if the
    kernel had run once. Choices are kept on disk under the device's model, the source with its headers, the
    configurations, the key, and the versions of rawkern and of the compiler. The environment variable
    ``RAWKERN_AUTOTUNE`` changes that: ``off`` uses the first configuration that works if there is no choice yet;
    ``retune`` sets the argument of that name for all.
    """
    if not isinstance(kernel, RawKernel):
        raise TypeError(f"autotune takes a RawKernel, got {type(kernel).__name__}; of a module: module.NAME")
    for what, function in (("where", where), ("reference", reference)):
        if function is not None and not callable(function):
            raise TypeError(f"{what} is {function!r}; pass a function")
    made, space = read(configs, where, kernel.name)
    said = dict.fromkeys(name for config in made for name in config)
    for name in places(kernel.name):
        if name not in said:
            given = f"; they have {', '.join(said)}{did_you_mean(name, said)}" if said else ""
            raise ValueError(f"autotune of {kernel.name}: no configuration has {name!r}, which is in its name{given}")
    tolerances = [value for value in (rtol, atol) if value is not None]
    if len(tolerances) == 1 or (tolerances and reference is None):
        raise TypeError("rtol and atol must be passed together, with a reference")
    if not all(isinstance(value, (int, float)) and value >= 0 for value in tolerances):
        raise ValueError(f"rtol is {rtol!r} and atol {atol!r}; pass numbers, 0 or more")
    if search is not None and space is None:
        raise TypeError("search needs a space: pass configs as a dict of lists")
    if search is None and search_options:
        raise TypeError("search_options need search=")
    if estimate is not None:
        card_named(estimate)
    found = None if search is None else Search(search, dict(search_options or {}), space or {}, where)
    return _made(Settings(kernel, made, Key(key), reference, rtol, atol, found, retune, estimate))


def _made(settings: Settings) -> TunedKernel:
    return TunedKernel(Choices(settings))


def _launcher(settings: Settings, form: Any) -> TunedLauncher:
    """The launcher of a form, as `TunedKernel.forall` and the brackets keep them."""
    tuned = _made(settings)
    covers = isinstance(form, tuple) and form[:1] == ("forall",)
    return tuned.forall(form[1], block=form[2]) if covers else tuned[form]


class TunedKernel(Shared):
    """A kernel with configurations; launched as a kernel is, by the forms that `rawkern.RawKernel` has.

    Grid, block and shared memory may be functions of the configuration (a dict)::

        tuned[lambda c: n // c["TILE"], lambda c: c["TILE"]](x, y)
        tuned.forall(n)(n, 2.0, x, y)
        tuned(grid, block, (x, y))

    If the configurations have ``block``, the brackets hold the grid alone: ``tuned[grid](x, y)``. Shared memory is
    theirs, too, if they have it.
    """

    _choices: Choices
    _settings: Settings
    _launchers: dict[Any, TunedLauncher]

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self._settings = choices.settings
        self._launchers = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (self._settings,)

    def __repr__(self) -> str:
        return f"<TunedKernel {self.name}, {len(self._settings.configs)} configurations>"

    def _repr_html_(self) -> str:
        """What a notebook shows: what was measured, or how many configurations there are to be measured."""
        found = [tuning._repr_html_() for tuning in self.tunings]
        configs = [[shown(config)] for config in self._settings.configs]
        return "<br>".join(found) or markup.table(self.name, "its first launch times these configurations", configs)

    @property
    def name(self) -> str:
        """The kernel's name, as it was given or as the source has it."""
        return self._choices.name

    @property
    def configs(self) -> tuple[Config, ...]:
        """All configurations."""
        return tuple(dict(config) for config in self._settings.configs)

    @property
    def tunings(self) -> tuple[Tuning, ...]:
        """What was measured, or read from disk, for each device and key so far; each prints as a table."""
        return tuple(copy.deepcopy(list(self._choices.tunings.values())))

    @api_boundary
    def kernel(self, config: Mapping[str, Any]) -> RawKernel:
        """Return the kernel of a configuration, which need not be one of `configs`.

        Parameters
        ----------
        config : dict
            Values of the macros, template arguments and options.

        Returns
        -------
        RawKernel
            Compiled with them; grid and block are the launch's.

        Raises
        ------
        ValueError
            A template argument is missing.
        """
        return self._choices.kernel(self._read(config, self._settings.in_name))

    @contextlib.contextmanager
    def using(self, config: Mapping[str, Any]) -> Iterator[None]:
        """Take this configuration for the launches inside, in this thread; nothing is timed.

        Parameters
        ----------
        config : dict
            It has all names of the configurations that say how to launch, and the template arguments.

        Raises
        ------
        ValueError
            One of those names is missing.
        """
        given = self._read(config, self._settings.in_config | self._settings.in_name)
        token = forced.set({**(forced.get() or {}), self._choices: given})
        try:
            yield
        finally:
            forced.reset(token)

    def _read(self, config: Any, needed: frozenset[str]) -> Config:
        (given,), _ = read([config], None, self.name)
        if missing := needed - set(given):
            meant = did_you_mean(min(missing), given)
            raise ValueError(f"autotune of {self.name}: the configuration has no {', '.join(sorted(missing))}{meant}")
        kernel, known = self._settings.kernel, [name for config in self._settings.configs for name in config]
        for name in unused(kernel, [{name: given[name] for name in given if name not in (*LAUNCH, *known)}]):
            raise rejection(kernel, name, self.name)
        return given

    # Launches -----------------------------------------------------------------------------------------------------

    @untraced
    def __getitem__(self, form: Any) -> TunedLauncher:
        """Settle the launch: ``tuned[grid, block]``, ``tuned[grid, block, shared_mem]``; see the class."""
        try:
            return self._launchers[form]
        except (KeyError, TypeError):
            pass
        return self._settled(form)

    @api_boundary
    def _settled(self, form: Any) -> TunedLauncher:
        if "block" in self._settings.in_config:
            if isinstance(form, tuple) and any(callable(n) or isinstance(n, (tuple, list)) for n in form):
                raise TypeError(f"{self.name}: block is in the configurations; launch with tuned[grid](...)")
            grid, block, shared_mem = form, None, 0
        elif isinstance(form, tuple) and len(form) in (2, 3):
            grid, block, shared_mem = (*form, 0)[:3]
        else:
            raise TypeError(
                f"{self.name}: a launch is tuned[grid, block](...), or tuned[grid](...) if configurations have block"
            )
        if "shared_mem" in self._settings.in_config and shared_mem != 0:
            raise TypeError(f"{self.name}: shared_mem is in the configurations and in the brackets; leave one out")

        def settle(kernel: RawKernel, c: Config) -> Any:
            return kernel.configured(cluster=c.get("cluster"))[
                grid(c) if callable(grid) else grid,
                c["block"] if block is None else block(c) if callable(block) else block,
                shared_mem(c) if callable(shared_mem) else c.get("shared_mem", shared_mem),
            ]

        return self._keep(form, settle, any(map(callable, (grid, block, shared_mem))))

    @untraced
    def forall(self, n: Any, *, block: Any = None) -> TunedLauncher:
        """Settle a launch of one dimension whose threads cover ``n`` elements; the block is the configuration's.

        Parameters
        ----------
        n : int or function of the configuration
            Elements, 0 or more.
        block : int or function of the configuration, optional
            Where the configurations have no ``block``; by default what `rawkern.RawKernel.forall` picks.

        Returns
        -------
        TunedLauncher
            Call it with the kernel's arguments.
        """
        form = ("forall", n, block)
        try:
            return self._launchers[form]
        except (KeyError, TypeError):
            pass
        return self._covering(form, n, block)

    @api_boundary
    def _covering(self, form: Any, n: Any, block: Any) -> TunedLauncher:
        if "block" in self._settings.in_config and block is not None:
            raise TypeError(f"{self.name}: block is in the configurations and given to forall; leave one out")
        if "shared_mem" in self._settings.in_config:
            raise TypeError(
                f"{self.name}: shared_mem is in the configurations, which forall does not support; use tuned[...]"
            )

        def settle(kernel: RawKernel, c: Config) -> Any:
            threads: Any = block(c) if callable(block) else c.get("block", block)
            count: Any = n(c) if callable(n) else n
            return kernel.configured(cluster=c.get("cluster")).forall(count, block=threads)

        return self._keep(form, settle, callable(n) or callable(block))

    @untraced
    @api_boundary
    def __call__(
        self, grid: Any, block: Any = None, args: Any = None, *rest: Any, shared_mem: Any = 0, stream: Any = None
    ) -> None:
        """Launch in CuPy's form, ``tuned(grid, block, args)``; ``stream`` is what `rawkern.RawKernel` takes."""
        if "block" in self._settings.in_config:
            raise TypeError(f"{self.name}: block is in the configurations; launch with tuned[grid](...)")
        if rest or not isinstance(args, (tuple, list)):
            given = ", ".join(type(value).__name__ for value in (grid, block, args, *rest))
            raise TypeError(
                f"{self.name}: a launch is tuned[grid, block](*args), tuned.forall(n)(*args) or "
                f"tuned(grid, block, (arg, ...)); got tuned({given})"
            )
        launcher = self[grid, block, shared_mem]
        if stream is None:
            launcher(*args)
        else:
            launcher.launch(tuple(args), stream)

    def _keep(self, form: Any, settle: Settle, varies: bool) -> TunedLauncher:
        if varies:  # the functions may give something else next time
            return TunedLauncher(self._choices, settle, (_launcher, form), keeps=False)
        try:
            if len(self._launchers) >= KEPT:
                self._launchers.clear()
            return self._launchers.setdefault(form, TunedLauncher(self._choices, settle, (_launcher, form), keeps=True))
        except TypeError:  # a list in the form: it works, only slower
            return TunedLauncher(self._choices, settle, (_launcher, form), keeps=False)
