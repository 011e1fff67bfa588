"""What puts a load on a server: programs of their own, so that they never share its process or its lock.

They encode what they send beforehand and look at what they receive no closer than they must.
"""
