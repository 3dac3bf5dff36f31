"""A discrete-event simulation of the scheduler and its pages, for sizing: it runs a trace of requests without a model."""
