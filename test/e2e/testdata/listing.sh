# Lists every file of the image with its type, mode, owner, links, size, time and target.
find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /run -o -path /listing -o -path /.fly -o -path /.platform -o -path /.hangar \
	-o -path /var/lib/apt/lists -o -path '/var/lib/dpkg/*-old' -o -path /var/cache -o -path /var/log \
	-o -path /etc/hostname -o -path /etc/hosts -o -path /etc/resolv.conf \) -prune \
	-o -type d -printf '%y %m %U %G %p\n' \
	-o -printf '%y %m %U %G %n %s %TY%Tm%Td%TH%TM %p %l\n' | LC_ALL=C sort
