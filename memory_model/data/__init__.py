"""What is trained on and measured on: references and questions about them, from facts, prose and people."""
