"""Homes for NSQ in other people's frameworks, one sub-package each. Nothing else in nsq imports these."""
