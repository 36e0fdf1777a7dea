"""Profiling of your own job: traces of torch.profiler and of Ray, and what `dtlab analyze` says.

    traces.py       traces of files, of profilers, of Ray: what `Trace.from_chrome` calls
      profiler.py   the traces of all ranks on one clock;  kineto.py: the events of one rank
      own_files.py  files of `Trace.to_chrome`;  ray_tasks.py: tasks of a Ray program
      reading/      files in any encoding or without an end, entries, names of kernels
    diagnosis.py    where the time of a step went, and what to try;  report.py: its text
      steps.py      where the steps of the loop begin and end
      replay.py     the step without a part of that time
"""
