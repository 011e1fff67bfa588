"""What the tools and the homes in ``nsq.contrib`` share."""
