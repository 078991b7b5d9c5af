#!/bin/bash
#$ -N workshop-lab
#$ -S /bin/bash
#$ -j y
#$ -o /dev/null
#$ -l h_rt=0:10:00
#$ -A grp
#$ -q gpu.q
#$ -l gpu_1=1

# JupyterLab on a node; what it prints, the tunnel and the address among it, goes to the log.
umask 077
exec >> /people/ada/jobs"/workshop-lab-$JOB_ID.log" 2>&1
set -euo pipefail
export https_proxy=http://proxy:3128
mkdir -p '/people/ada/my lab'
cd '/people/ada/my lab'
exec python3 -m workshop lab --dir '/people/ada/my lab' --port 8888 --no-browser --tunnel ada@login.example.org
