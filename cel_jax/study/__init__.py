"""The study: the fleet's own learning code in lock-step, thousands of simulated episodes in minutes, with controls."""
