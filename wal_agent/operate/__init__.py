"""What a person does with a job that rests, and what is asked of one that runs."""
