"""`run_sweep`: train the missing runs of a sweep, and write its report."""

import contextlib
from collections.abc import Callable

import keras

from trainers.loop.errors import NonFiniteLossError
from trainers.runs.job import Job, train
from trainers.runs.preparation import prepare
from trainers.runs.resources import warn_of_shortage
from trainers.runs.summaries import describe_skipped
from trainers.sweeps.plan import Sweep
from trainers.sweeps.reports import save_report
from trainers.sweeps.trials import REPORT, Case, Trial, read_trials


def run_sweep(
    sweep: Sweep,
    must_stop: Callable[[], bool] = lambda: False,
    preparing: Callable = contextlib.nullcontext,
) -> list[Trial]:
    """Train all runs of a sweep that are not finished.

    The learning rate is chosen by the highest accuracy on the held-out images
    (of equals, the lowest loss). Then the whole training split is trained on
    with each seed, and only then the test split is read. The report is written
    after each run, so an interrupted sweep goes on from there.

    Args:
        sweep: The result of `open_sweep`.
        must_stop: See `Loop`.
        preparing: Returns a context in which a run is prepared, where errors
            are those of the user.

    Returns:
        The trials of all runs, those of the choice first.

    Raises:
        ValueError: If a run is not possible.
        NonFiniteLossError: If the loss is not finite with the chosen rate.
        Interrupted, WorkerLostError, CheckpointError, OSError: See `train`.
    """
    known = read_trials(sweep.run.folder)
    trials = []
    writes = sweep.is_writer
    with sweep.run.claimed("sweep_dir") if writes else contextlib.nullcontext():
        if writes:
            sweep.run.save_recipe(sweep.recipe, sweep.dataset.class_names)
            save_report(sweep, [], known)
        for case in sweep.cases(trials):
            trial = next((t for t in known if t.case == case), None)
            if trial is None:
                number = f"Run {len(trials) + 1} of {sweep.num_runs}"
                trial = train_case(sweep, case, number, must_stop, preparing)
            trials.append(trial)
            if writes:
                others = [t for t in known if t not in trials]
                save_report(sweep, trials, others)
    return trials


def train_case(
    sweep: Sweep,
    case: Case,
    number: str,
    must_stop: Callable[[], bool],
    preparing: Callable,
) -> Trial:
    """Return the result of one run, which is begun or continued.

    Args:
        sweep: The sweep.
        case: What to train.
        number: The number of the run, for the output.
        must_stop: See `run_sweep`.
        preparing: See `run_sweep`.
    """
    with preparing():
        job = prepare_case(sweep, case)
    if sweep.is_writer:
        print(f"\n{number}: {case}\n{job}", flush=True)
        if not job.memory_plan:
            warn_of_shortage(job)
    job.loop.must_stop = must_stop
    try:
        logs = train(job)
    except NonFiniteLossError as error:
        if case.purpose == REPORT:
            raise
        if sweep.is_writer:
            print(f"This learning rate is not chosen. {error}", flush=True)
        return Trial(*case, None, None)
    if job.bad_examples.names:
        print(describe_skipped(job.bad_examples.names))
    return Trial(*case, float(logs["val_accuracy"]), float(logs["val_loss"]))


def prepare_case(sweep: Sweep, case: Case) -> Job:
    """Return the job of one run; see `prepare` for its errors.

    Args:
        sweep: The sweep.
        case: What to train.
    """
    keras.backend.clear_session()  # Forgets the model of the run before.
    recipe = sweep.recipe_of(case)
    return prepare(
        recipe,
        str(sweep.run.folder / case.folder),
        sweep.config,
        chosen=sweep.choice_of(recipe),
    )
