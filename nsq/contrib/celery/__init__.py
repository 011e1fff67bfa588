"""NSQ as a Celery broker: a transport for kombu, which Celery sends and receives by.

    pip install 'nsq[celery]'

    app = Celery("shop", broker="nsq://127.0.0.1:4150")

Once the extra is installed, kombu finds the transport by itself: ``register`` is the entry point.
"""
