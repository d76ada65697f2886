"""The five acts of the demo, which tests repeat: what people do, and what is seen of it."""
