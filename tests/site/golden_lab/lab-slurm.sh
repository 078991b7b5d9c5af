#!/bin/bash
#SBATCH --job-name=workshop-lab
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --time=01:00:00
#SBATCH --output=/people/ada/jobs/workshop-lab-%j.log

# JupyterLab on a node; what it prints, the tunnel and the address among it, goes to the log.
umask 077
set -euo pipefail
mkdir -p /scratch/ada/lab
cd /scratch/ada/lab
exec /shared/venv/bin/python -m workshop lab --dir /scratch/ada/lab --port 8888 --no-browser --tunnel ada@login.example.org
