"""JSON-Schema state machine: constraint, forced runs, drafts."""
