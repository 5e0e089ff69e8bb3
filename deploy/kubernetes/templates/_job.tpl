{{/* What a Job is. `root`: the chart's own context, `command`: the agent container's, `env`: more of its variables. */}}
{{- define "wal-agent.job" -}}
{{- $root := .root -}}
{{- $mounts := list (dict "name" "state" "mountPath" "/state") (dict "name" "work" "mountPath" $root.Values.folder) -}}
# A failure that matches no rule below (the agent's own failure, 69, 70, 74: it ended inside its turn) counts here.
backoffLimit: {{ $root.Values.attempts }}
# A new pod only when the old one is gone: it would spend its time waiting for the lease.
podReplacementPolicy: Failed
podFailurePolicy:
  rules:
    # A node that was drained, preempted or lost: not the job's fault.
    - action: Ignore
      onPodConditions:
        - type: DisruptionTarget
          status: "True"
    # 75: another pod has it, or it is paused. 76: another pod has taken it over. 143: drained, saved, released.
    - action: Ignore
      onExitCodes:
        containerName: agent
        operator: In
        values: [75, 76, 143]
    # A person is needed: 64 usage, 73 damaged, 77 permission, 78 configuration, 79 a call that only a person can
    # resolve, 80 crash loop.
    - action: FailJob
      onExitCodes:
        containerName: agent
        operator: In
        values: [64, 73, 77, 78, 79, 80]
template:
  metadata:
    labels:
      app.kubernetes.io/name: wal-agent
    annotations:
      # On nodes that are not preemptible: the autoscaler must not move an agent in the middle of its work.
      cluster-autoscaler.kubernetes.io/safe-to-evict: "false"
      karpenter.sh/do-not-disrupt: "true"
      prometheus.io/scrape: "true"
      prometheus.io/port: "9464"
  spec:
    serviceAccountName: {{ $root.Release.Name }}
    restartPolicy: Never
    # The drain (20 s), with room for its last put.
    terminationGracePeriodSeconds: 60
    {{- with $root.Values.runtimeClass }}
    runtimeClassName: {{ . }}
    {{- end }}
    {{- with $root.Values.pod }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    securityContext:
      runAsNonRoot: true
      runAsUser: 1000
      runAsGroup: 1000
      fsGroup: 1000
      seccompProfile:
        type: RuntimeDefault
    initContainers:
      # The project; after a crash the recovery puts the saved work into this clone.
      - name: clone
        image: {{ $root.Values.image | quote }}
        command: ["sh", "-c", 'test -d .git || git clone -- "$REPOSITORY" .']
        env:
          - name: REPOSITORY
            value: {{ $root.Values.repository | quote }}
          - name: HOME
            value: /state/home
        workingDir: {{ $root.Values.folder | quote }}
        securityContext: &confined
          allowPrivilegeEscalation: false
          capabilities:
            drop: [ALL]
        volumeMounts: {{ toJson $mounts }}
    containers:
      # PID 1 of the container (exec form), so that SIGTERM reaches it and it can end the whole tree; no sidecar.
      - name: agent
        image: {{ $root.Values.image | quote }}
        command: {{ toJson .command }}
        envFrom: {{ toJson (concat (list (dict "configMapRef" (dict "name" $root.Release.Name))) $root.Values.envFrom) }}
        env:
          {{- with .env }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
          - name: HOME
            value: /state/home
          - name: XDG_STATE_HOME
            value: /state
        workingDir: {{ $root.Values.folder | quote }}
        ports:
          - name: metrics
            containerPort: 9464
        # Up at once; a restore or a pause may then take as long as it takes.
        startupProbe:
          httpGet:
            path: /healthz
            port: metrics
          periodSeconds: 2
          failureThreshold: 30
        # Lease, restore and the proof of the hooks are done, and the agent's work is saved.
        readinessProbe:
          httpGet:
            path: /readyz
            port: metrics
          periodSeconds: 10
        # The supervisor's own loop only: an outage of the bucket must not restart hundreds of agents.
        livenessProbe:
          httpGet:
            path: /healthz
            port: metrics
          periodSeconds: 10
          failureThreshold: 3
        resources: {{ toJson $root.Values.resources }}
        securityContext: *confined
        volumeMounts: {{ toJson $mounts }}
    volumes:
      # Local and lost with the pod, on purpose: what must survive is in the bucket.
      - name: state
        emptyDir: {}
      - name: work
        emptyDir: {}
{{- end }}
