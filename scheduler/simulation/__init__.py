"""A discrete-event simulation of scheduler and pages, for sizing: a trace of requests is run without a model."""
