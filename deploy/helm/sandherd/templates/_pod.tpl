{{/* Every pod: an unprivileged user, nothing writable but the given volumes, and no token unless it is requested.
Takes a dictionary: root, component, containers; token, volumes, more, placement. */}}
{{- define "sandherd.pod" -}}
{{- $ := .root -}}
metadata:
  labels:
    {{- include "sandherd.selector" (list $ .component) | nindent 4 }}
    app.kubernetes.io/part-of: sandherd
    {{- with $.Values.pods.labels }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- with mustMerge (dict) ($.Values.pods.annotations | default dict) (.annotations | default dict) }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ .account }}
  automountServiceAccountToken: {{ .token | default false }}
  enableServiceLinks: false
  terminationGracePeriodSeconds: 30
  securityContext:
    runAsNonRoot: true
    {{- with $.Values.pods.user }}
    runAsUser: {{ int64 . }}
    runAsGroup: {{ int64 . }}
    fsGroup: {{ int64 . }}
    fsGroupChangePolicy: OnRootMismatch
    {{- end }}
    seccompProfile: {type: RuntimeDefault}
  {{- with $.Values.image.pullSecrets }}
  imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
  {{- end }}
  {{- $placement := .placement | default dict }}
  {{- range $field := list "nodeSelector" "tolerations" "affinity" "priorityClassName" }}
  {{- with ternary (get $placement $field) (get $.Values.pods $field) (hasKey $placement $field) }}
  {{ $field }}: {{ toJson . }}
  {{- end }}
  {{- end }}
  {{- with .more }}{{ . | nindent 2 }}{{ end }}
  containers:
    {{- .containers | nindent 4 }}
  volumes:
  - name: tmp
    emptyDir: {sizeLimit: {{ .tmp | default "64Mi" }}}
  {{- with .volumes }}{{ . | nindent 2 }}{{ end }}
  {{- with $.Values.pods.volumes }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}

{{/* The fields that every container has: takes (list $ "image"). */}}
{{- define "sandherd.container" -}}
{{- $ := first . -}}
image: {{ include "sandherd.image" . }}
imagePullPolicy: {{ $.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
  readOnlyRootFilesystem: true
{{- end }}

{{- define "sandherd.mounts" -}}
- name: tmp
  mountPath: /tmp
{{- with .Values.pods.volumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The volume with one Secret, readable for the pod's group: takes (list "volume" "secret"). */}}
{{- define "sandherd.secret" -}}
- name: {{ first . }}
  secret:
    secretName: {{ last . }}
    defaultMode: 0440
{{- end }}

{{/* A variable from a Secret: takes (list "NAME" "secret" "key"). */}}
{{- define "sandherd.secretVariable" -}}
- name: {{ first . }}
  valueFrom:
    secretKeyRef: {name: {{ index . 1 }}, key: {{ last . }}}
{{- end }}

{{/* The variables with the paths of TLS files: takes (list "PREFIX" "directory" tls). */}}
{{- define "sandherd.tlsVariables" -}}
{{- $prefix := first . }}{{ $directory := index . 1 }}{{ $tls := last . }}
{{- range $part := list "ca" "cert" "key" }}
{{- if and $tls.secret (get $tls $part) }}
- name: {{ $prefix }}NATS_{{ upper $part }}
  value: {{ $directory }}/{{ get $tls $part }}
{{- end }}
{{- end }}
{{- end }}
