# Ends a cluster and removes all that it made, however little of it there is: processes, network namespaces, control groups,
# mounts, files. Its logs are kept beside the state folder. With the last cluster of the machine the kernel's settings return to
# what they were before the first. Run as `sh -c TEXT NAME STATE_FOLDER`; twice does no harm.
set -u
state=$1
clusters=${state%/*}
name=${state##*/}
failed=0

# Every process of a cluster carries its state folder in its environment; containers die with process 1 of their node.
processes() { grep -lszxF "LOCKSTEP_CLUSTER=$state" /proc/[0-9]*/environ | cut -d/ -f3; }

# Repeats a step until it says that it is done, 10 s at most.
until_done() {
  left=100
  until "$@"; do
    left=$((left - 1))
    [ $left -gt 0 ] || { echo "$* did not come to its end" >&2; failed=1; return; }
    sleep 0.1
  done
}

end_processes() {
  pids=$(processes)
  [ -z "$pids" ] || { kill -KILL $pids 2>/dev/null; false; }
}

remove_groups() {
  for group in /sys/fs/cgroup/lockstep-"$name" /sys/fs/cgroup/*/lockstep-"$name"; do
    [ ! -d "$group" ] || find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || return 1
  done
}

until_done end_processes
for namespace in /run/netns/lockstep-"$name"-*; do
  [ ! -e "$namespace" ] || ip netns del "${namespace##*/}" || failed=1
done
until_done remove_groups
while read -r _ target _; do
  case $target in "$state"/*) umount -l "$target" || failed=1 ;; esac
done </proc/self/mounts

if [ -d "$state" ]; then
  if [ -d "$state/log" ]; then
    rm -rf "$state.log"
    mv "$state/log" "$state.log"
  fi
  rm -rf --one-file-system "$state" || failed=1
  (
    flock 9
    others=$(find "$clusters" -mindepth 1 -maxdepth 1 -type d ! -name '*.log')
    if [ -z "$others" ] && [ -f "$clusters/sysctls" ]; then
      while read -r setting value; do echo "$value" >"/proc/sys/$setting"; done <"$clusters/sysctls"
      rm "$clusters/sysctls"
    fi
  ) 9>"$clusters/lock" || failed=1
fi
exit $failed
