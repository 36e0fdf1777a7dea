"""The library's own version, called under another name, from hidden code, or copied."""

from __future__ import annotations

from tests.hostile.submissions import Hostile

__all__ = ["CATALOGUE"]

GONE = "is not available while an answer is graded"


def finished(name: str, tries: str, answer: str, *says: str, before: str = "") -> Hostile:
    """An answer that earns nothing."""
    answers = {"ring_all_reduce": answer}
    return Hostile(
        name, f"{tries}.", {"ring_all_reduce": 0.0}, 20, before=before, answers=answers, says=says
    )


CATALOGUE = [
    Hostile(
        "a copy of its source",
        "Runs the source of dtlab.collectives as a module with another name.",
        {"reduce_scatter": 0.0},
        20,
        answers={
            "reduce_scatter": """
                import inspect
                from dtlab import collectives

                source = inspect.getsource(collectives.ring_reduce_scatter)
                own = dict(vars(collectives), __name__="mine")
                exec(source, own)

                def reduce_scatter(output, input, group=None):
                    own["ring_reduce_scatter"](output, input, group=group)
                """
        },
        says=["is not defined"],
    ),
    finished(
        "a module with another name",
        "Loads dtlab.collectives a second time, as a module that is called mine",
        """
        import importlib.util
        import sys

        def ring_all_reduce(tensor, group=None):
            import dtlab.collectives

            spec = importlib.util.spec_from_file_location("mine", dtlab.collectives.__file__)
            mine = importlib.util.module_from_spec(spec)
            sys.modules["mine"] = mine
            try:  # a course under /tmp cannot be read at all
                spec.loader.exec_module(mine)
                mine.ring_all_reduce(tensor, group=group)
            except (AttributeError, OSError):
                raise RuntimeError("nothing was found there") from None
        """,
        "nothing was found there",
    ),
    finished(
        "a second import",
        "Forgets that dtlab.collectives has been imported, and imports it again",
        """
        import sys

        def ring_all_reduce(tensor, group=None):
            for name in [name for name in sys.modules if name.startswith("dtlab.collectives")]:
                del sys.modules[name]
            from dtlab.collectives import ring_all_reduce as ready

            ready(tensor, group=group)
        """,
        "ModuleNotFoundError",
    ),
    finished(
        "without the profiler",
        "Switches the profiler off before the call, and on again behind it",
        """
        import sys
        import threading

        def ring_all_reduce(tensor, group=None):
            from dtlab.collectives import ring_all_reduce as ready

            profile = sys.getprofile()
            sys.setprofile(None)
            try:
                ready(tensor, group=group)
            finally:
                sys.setprofile(profile)
        """,
        GONE,
    ),
    finished(
        "a thread without the profiler",
        "Calls the finished ring in a thread that Python's threading does not list",
        """
        import _thread

        def ring_all_reduce(tensor, group=None):
            from dtlab.collectives import ring_all_reduce as ready

            done, failed = _thread.allocate_lock(), []
            done.acquire()

            def run():
                try:
                    ready(tensor, group=group)
                except BaseException as error:
                    failed.append(error)
                finally:
                    done.release()

            _thread.start_new_thread(run, ())
            done.acquire()
            for error in failed:
                raise error
        """,
        GONE,
    ),
    finished(
        "a copy of its functions",
        "Builds new functions from the code objects of dtlab.collectives, in a cell",
        """
        import types

        from dtlab import collectives

        own = {}
        for name, value in vars(collectives).items():
            own[name] = value
            if isinstance(value, types.FunctionType):
                own[name] = types.FunctionType(
                    value.__code__, own, name, value.__defaults__, value.__closure__
                )
        own["__name__"] = "mine"
        ready = own["ring_all_reduce"]

        def ring_all_reduce(tensor, group=None):
            ready(tensor, group=group)
        """,
        GONE,
    ),
    finished(
        "code from ranks of a cell",
        "Has ranks that a cell launches hand over the code of dtlab.collectives",
        """
        import marshal
        import types

        def code_of():
            from dtlab import collectives

            return {name: marshal.dumps(value.__code__)
                    for name, value in vars(collectives).items()
                    if isinstance(value, types.FunctionType) and not value.__closure__}

        import dtlab

        own = {**globals(), "__name__": "mine"}
        from dtlab import collectives

        own = {**vars(collectives), "__name__": "mine"}
        for name, code in dtlab.launch(code_of, world_size=1).values[0].items():
            own[name] = types.FunctionType(marshal.loads(code), own, name,
                                           vars(collectives)[name].__defaults__)
        ready = own["ring_all_reduce"]

        def ring_all_reduce(tensor, group=None):
            ready(tensor, group=group)
        """,
        GONE,
    ),
    finished(
        "compiled files",
        "Reads what Python has compiled of dtlab.collectives",
        """
        import marshal
        import pathlib

        def ring_all_reduce(tensor, group=None):
            from dtlab import collectives

            folder = pathlib.Path(collectives.__file__).parent
            for path in folder.rglob("*collectives*.pyc"):
                own = {"__name__": "mine"}
                exec(marshal.loads(path.read_bytes()[16:]), own)
                own["ring_all_reduce"](tensor, group=group)
            raise FileNotFoundError("no code")
        """,
        "Error",
    ),
    finished(
        "whatever is in memory",
        "Looks for functions that reduce in a ring among all objects of the process",
        """
        import gc
        import types

        def ring_all_reduce(tensor, group=None):
            found = [one for one in gc.get_objects() if isinstance(one, types.FunctionType)
                     and one.__name__ == "ring_all_reduce" and one is not ring_all_reduce]
            for ready in found:
                ready(tensor, group=group)
            if not found:
                raise LookupError("none is there")
        """,
        "Error",
    ),
]
