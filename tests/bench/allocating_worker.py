"""The real worker, whose probe holds exactly side × side bytes."""

import torch

from infsa.bench.worker import Worker, serve


class Allocating(Worker):
    def probe(self, job):
        side = job["case"]["size"][0]
        torch.empty(side * side, dtype=torch.uint8, device=self.device).fill_(1)
        return {"seconds": 0.0, "peak_bytes": side * side}


if __name__ == "__main__":
    serve(Allocating)
