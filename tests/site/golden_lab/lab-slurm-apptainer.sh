#!/bin/bash -l
#SBATCH --job-name=workshop-lab
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=64
#SBATCH --gpus-per-node=4
#SBATCH --time=02:00:00
#SBATCH --account=ab123
#SBATCH --partition=gpu
#SBATCH --reservation=course
#SBATCH --exclusive
#SBATCH --output=/scratch/ada/jobs/workshop-lab-%j.log

# JupyterLab on a node; what it prints, the tunnel and the address among it, goes to the log.
umask 077
module load apptainer
set -euo pipefail
export WORKSHOP_CACHE=/scratch/ada/cache
export HF_HUB_OFFLINE=1
mkdir -p /scratch/ada/lab /scratch/ada/cache
cd /scratch/ada/lab
exec apptainer exec --cleanenv --nv --bind /scratch --pwd /scratch/ada/lab --env PYTHONNOUSERSITE=1 --env WORKSHOP_CACHE=/scratch/ada/cache --env HF_HUB_OFFLINE=1 ${CUDA_VISIBLE_DEVICES+--env "CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES"} ${SLURM_JOB_ID+--env "SLURM_JOB_ID=$SLURM_JOB_ID"} ${SLURM_JOB_NODELIST+--env "SLURM_JOB_NODELIST=$SLURM_JOB_NODELIST"} ${SLURM_JOB_NUM_NODES+--env "SLURM_JOB_NUM_NODES=$SLURM_JOB_NUM_NODES"} ${SLURM_CONF+--env "SLURM_CONF=$SLURM_CONF"} /shared/workshop.sif python3 -m workshop lab --dir /scratch/ada/lab --port 8888 --no-browser --tunnel ada@login.example.org --network
